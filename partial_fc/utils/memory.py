"""Free memory of this host."""

from pathlib import Path

# Limit, usage and statistics of the container's control group, version 2 and 1; /proc/meminfo is that of the machine.
_CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
# The page cache counts as usage, but the kernel gives it up when programs need memory; version 1 adds "total_".
_CACHE = ("active_file", "inactive_file")


def free_memory(root: str | Path = "/") -> int:
    """Bytes that programs can still allocate without swapping, of the machine or of the container if that has less."""
    root = Path(root)
    free = 1024 * _table(root / "proc/meminfo")["MemAvailable"]
    for limit, usage, statistics in _CONTAINERS:
        folder = root / "sys/fs/cgroup"
        try:
            left = int((folder / limit).read_text()) - int((folder / usage).read_text())
            table = _table(folder / statistics)
        except (OSError, ValueError):  # no such control group, or its limit is "max"
            continue
        free = min(free, left + sum(table.get(f"total_{name}", table.get(name, 0)) for name in _CACHE))
    return max(free, 0)


def require_memory(needed: int, free: int, place: str, hint: str) -> None:
    """Raises ValueError if the centers and their states do not fit; ``place``, such as "on GPU 0", is for it."""
    if needed > free:
        raise ValueError(
            f"class centers and optimizer states need {needed / 2**30:.1f} GiB {place}, {free / 2**30:.1f} GiB are "
            f"free: {hint}"
        )


def _table(path: Path) -> dict[str, int]:
    """The first number of each line under the line's name."""
    return {name.rstrip(":"): int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
