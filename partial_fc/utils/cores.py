"""The cores that this process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path


def usable_cores(process: int = 0) -> int:
    """Number of cores that a process may use; 0: this one. Raises OSError if there is no such process.

    That is what it is bound to, at most the whole cores of its quota, which containers are given: with more threads,
    all of them would be stopped for a part of each period.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(process)) if affinity else os.cpu_count() or 1
    return max(1, math.floor(min(cores, cpu_quota(f"/proc/{process or 'self'}/cgroup", "/sys/fs/cgroup"))))


def cpu_quota(membership: str, root: str) -> float:
    """Returns how many cores' time the control groups of a process grant (infinity without a quota).

    ``membership`` is the file of /proc that names the groups, which may be missing; ``root`` where they are mounted,
    version 1 or 2.
    """
    quota = math.inf
    with suppress(OSError), open(membership) as stream:
        for line in stream:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "cpu" not in controllers.split(","):  # version 2 names none
                continue
            mount = os.path.join(root, "cpu" if controllers else "")
            # A group has at most what each group above it has. In a container the path may be that of the host, and
            # the mount is the container's own group.
            parts = path.strip("/").split("/")
            for depth in range(len(parts) + 1):
                quota = min(quota, _quota_of_group(os.path.join(mount, *parts[:depth])))
    return quota


def _quota_of_group(folder: str) -> float:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # no such file; "max" of version 2
            limit, period = map(int, " ".join(Path(folder, name).read_text() for name in names).split())
            return limit / period if limit > 0 else math.inf  # -1 of version 1
    return math.inf
