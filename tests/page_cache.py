"""The pages of a file that are in the page cache."""

import ctypes
import os
import time

import numpy as np
import pytest

from partial_fc.utils.mmap_rows import RowFile

PAGE = 4096


def in_memory(file):
    """Returns the pages of a RowFile that are in memory."""
    pages = np.zeros(-(-file.rows.nbytes // PAGE), np.uint8)
    address, vector = (ctypes.c_void_p(array.ctypes.data) for array in (file.rows, pages))
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(file.rows.nbytes), vector) == 0
    return set(np.flatnonzero(pages & 1).tolist())


def require_in_memory(files, expected):
    """Waits until these pages of each file, and no others, are in memory."""
    deadline = time.monotonic() + 10
    while (resident := [in_memory(file) for file in files]) != expected and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert resident == expected


def require_disk(folder):
    """Skips a test if the folder's file system is in memory."""
    probe = RowFile(str(folder), 1, PAGE, reserve=True)
    os.pwrite(probe._file.fileno(), b"x", 0)
    probe.flush()
    os.posix_fadvise(probe._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if 0 in in_memory(probe):
        pytest.skip("the temporary files of this machine are in memory")
