"""A small disk, to be filled."""

import errno
import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(folder, size):
    """Mounts a file system of a size such as "64k" in a new folder and yields it; skips the test without root."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"needs root to mount a small disk: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # a process that has just ended may still hold it


def fill(disk):
    """Fills a disk with a file named large."""
    free = os.statvfs(disk)
    try:
        (disk / "large").write_bytes(bytes(free.f_bavail * free.f_frsize))
    except OSError as error:  # a training that is running has written meanwhile
        if error.errno != errno.ENOSPC:
            raise
