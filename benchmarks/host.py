"""Functions of this host for benchmarks: its CPU, the memory of a process, and starting ranks."""

import ctypes
import gc
import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


def cpu_name() -> str:
    """Returns the model of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")


def resident(field: str) -> int:
    """Returns VmRSS of this process in bytes, or VmHWM, its maximum since the last reset."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(field))


def start_peak() -> int:
    """Releases freed memory, resets VmHWM to VmRSS (proc(5), clear_refs) and returns VmRSS in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident("VmRSS")


def run_ranks(command: str, timeout: float) -> dict:
    """Runs a bash command with one thread per rank; returns the JSON object that rank 0 prints last.

    Raises:
        RuntimeError: the command failed, or printed no JSON object.
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        raise RuntimeError(f"{command} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return json.loads(lines[-1])


class Usage(NamedTuple):
    """Resources of a command: the peak memory of its largest process in MB, and processor seconds."""

    peak_mb: float
    cpu_seconds: float


def run_with_usage(command: list[str], environment: dict[str, str]) -> Usage:
    """Runs a command and discards its output.

    The memory is at least the peak of this process, which Linux counts for any child. Raises
    subprocess.CalledProcessError if the command fails.
    """
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Usage(usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)
