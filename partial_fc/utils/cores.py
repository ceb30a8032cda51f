"""The number of cores that a process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path


def usable_cores(process: int = 0) -> int:
    """Returns the number of cores that a process may use: its affinity, limited by the CPU quota of its container.

    The quota is rounded down, because the kernel would pause all threads of a process that exceeds it.

    Args:
        process: process id; 0 for this process.

    Raises:
        OSError: there is no such process.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(process)) if affinity else os.cpu_count() or 1
    return max(1, math.floor(min(cores, cpu_quota(f"/proc/{process or 'self'}/cgroup", "/sys/fs/cgroup"))))


def cpu_quota(membership: str, root: str) -> float:
    """Returns the CPU quota of a process's control groups, in cores; infinity without one.

    Args:
        membership: the file ``/proc/PID/cgroup``, which may be missing.
        root: mount point of the control groups, version 1 or 2.
    """
    quota = math.inf
    with suppress(OSError), open(membership) as stream:
        for line in stream:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "cpu" not in controllers.split(","):  # version 2 has no controllers here
                continue
            mount = os.path.join(root, "cpu" if controllers else "")
            # The quotas of all parent groups apply. In a container the path may be the host's, while the mount point
            # is the container's group: folders that do not exist are skipped.
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
