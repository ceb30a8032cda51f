"""What benchmarks read from the operating system."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path


def cpu_name() -> str:
    """The model of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")


def resident(field: str) -> int:
    """VmRSS, or VmHWM (its maximum since the last reset), of this process in bytes."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(field))


def start_peak() -> int:
    """Releases freed memory, resets VmHWM to VmRSS (proc(5), clear_refs) and returns VmRSS in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident("VmRSS")
