"""How much memory this host still has to give."""

from __future__ import annotations

from pathlib import Path

# What a container may use and uses, cgroup v2 and v1; the kernel's number is that of the whole machine.
_LIMITS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory(root: str | Path = "/") -> int:
    """Bytes that programs can still take without swapping, of the machine or of the container's share."""
    root = Path(root)
    lines = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    for limit, used in _LIMITS:
        try:
            free = min(free, int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return free


def require_memory(needed: int, free: int, place: str, remedy: str) -> None:
    """Refuses what would not fit, before it is allocated.

    Args:
        needed, free: bytes.
        place: where, for the message.
        remedy: what to do.

    Raises:
        ValueError: it does not fit.
    """
    if needed > free:
        raise ValueError(
            f"class centers and momentum need {needed / 2**30:.1f} GiB {place}, {free / 2**30:.1f} GiB are free: "
            f"{remedy}"
        )
