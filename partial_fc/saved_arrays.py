"""Arrays out of files that MXNet's ``nd.save`` wrote, without a copy of them in memory.

Layout, little-endian: uint64 magic number, 0 and number of arrays; each array: uint32 magic number, int32 kind of
storage, int32 number of dimensions, an int64 for each, int32 kind and number of the device it was on, int32 type of
its numbers, the numbers. Names of the arrays may follow.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Iterator

import numpy as np

LIST_MAGIC = 0x112
ARRAY_MAGICS = (0xF993FAC9, 0xF993FACA)  # the second where arrays may have no rows (mx.util.np_shape)
DENSE, FLOAT32 = 0, 0
CUT_SHORT = "the file is cut short"


def saved_arrays(path: str | os.PathLike) -> list[np.ndarray]:
    """Every array of a file, float32, mapped to be read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is cut short, or is no file of float32 arrays.
    """
    try:
        return list(_arrays(np.memmap(path, np.uint8, mode="r").data))
    except struct.error:
        raise ValueError(CUT_SHORT) from None


def _arrays(data: memoryview) -> Iterator[np.ndarray]:
    magic, _, arrays = struct.unpack_from("<3Q", data)
    if magic != LIST_MAGIC:
        raise ValueError(f"the file does not start as those of MXNet's nd.save do, with {LIST_MAGIC:#x}")
    place = 24
    for _ in range(arrays):
        magic, storage, dimensions = struct.unpack_from("<Iii", data, place)
        if magic not in ARRAY_MAGICS or storage != DENSE or dimensions < 0:
            raise ValueError(f"there is no array at byte {place}")
        *shape, _, _, kind = struct.unpack_from(f"<{dimensions}q3i", data, place + 12)
        if kind != FLOAT32:
            raise ValueError(f"the array at byte {place} is not of float32")
        place += 24 + 8 * dimensions
        count = math.prod(shape)
        if place + 4 * count > len(data):
            raise ValueError(CUT_SHORT)
        yield np.frombuffer(data, "<f4", count, place).reshape(shape)
        place += 4 * count
