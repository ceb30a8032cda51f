"""Free memory of this host."""

from pathlib import Path

# Limit, usage and statistics of a container's control group, versions 2 and 1. /proc/meminfo is of the whole machine.
_CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
# The page cache counts as usage, but the kernel releases it when programs need memory. Version 1 has prefix "total_".
_CACHE = ("active_file", "inactive_file")


def free_memory(root: str | Path = "/") -> int:
    """Returns the bytes that programs can allocate without swapping, on this machine or in this container."""
    root = Path(root)
    free = 1024 * _table(root / "proc/meminfo")["MemAvailable"]
    for limit, usage, statistics in _CONTAINERS:
        folder = root / "sys/fs/cgroup"
        try:
            left = int((folder / limit).read_text()) - int((folder / usage).read_text())
            table = _table(folder / statistics)
        except (OSError, ValueError):  # no control group of this version, or the limit is "max"
            continue
        free = min(free, left + sum(table.get(f"total_{name}", table.get(name, 0)) for name in _CACHE))
    return max(free, 0)


def require_memory(needed: int, free: int, place: str, hint: str) -> None:
    """Raises ValueError if the centers and their states do not fit. ``place`` is for the message: "on GPU 0"."""
    if needed > free:
        raise ValueError(
            f"class centers and optimizer states need {needed / 2**30:.1f} GiB {place}, {free / 2**30:.1f} GiB are "
            f"free: {hint}"
        )


def _table(path: Path) -> dict[str, int]:
    """Returns the first number of each line, by the line's name."""
    return {name.rstrip(":"): int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
