"""The files that MXNet's ``nd.save`` writes, read without a copy in memory and written without losing a byte unnoticed.

(MXNet itself writes over the file that is there, and on a full disk says nothing of a tail that is missing.)

Layout, little-endian: uint64 magic number, 0 and number of arrays; each array: uint32 magic number, int32 kind of
storage, int32 number of dimensions, an int64 for each, int32 kind and number of the device it was on, int32 type of
its numbers, the numbers. Then uint64 number of names, 0 or one for each array; each: uint64 length, UTF-8.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

LIST_MAGIC = 0x112
# The second in all of a file where one has no rows or no dimensions (mx.util.np_shape): MXNet reads no mixture.
ARRAY_MAGIC, NUMPY_ARRAY_MAGIC = 0xF993FAC9, 0xF993FACA
DENSE, CPU = 0, 1
FLOAT32, FLOAT16 = 0, 2
TYPES = {FLOAT32: "<f4", FLOAT16: "<f2"}
MAX_DIMENSIONS = 32
CUT_SHORT = "the file is cut short"


def saved_arrays(path: str | os.PathLike) -> list[np.ndarray]:
    """Every array of a file, float32, mapped to be read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is cut short, or is no file of float32 arrays.
    """
    arrays, _ = _read(path, (FLOAT32,))
    return arrays


def named_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file by their names, float32 or float16, mapped to be read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is cut short, holds other types, or its arrays have no names.
    """
    arrays, names = _read(path, (FLOAT32, FLOAT16))
    if not len(set(names)) == len(names) == len(arrays):
        raise ValueError(f"its {len(arrays)} arrays have {len(names)} names, {len(set(names))} of them different")
    return dict(zip(names, arrays))


def array_file_chunks(arrays: Sequence[np.ndarray] | Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Such a file, piece by piece, of arrays in C order; with names where they have some.

    Raises:
        ValueError: an array is neither float32 nor float16.
    """
    names = [name.encode() for name in arrays] if isinstance(arrays, Mapping) else []
    values = list(arrays.values()) if isinstance(arrays, Mapping) else arrays
    kinds = {np.dtype(name): kind for kind, name in TYPES.items()}
    magic = ARRAY_MAGIC if all(array.size and array.ndim for array in values) else NUMPY_ARRAY_MAGIC
    yield struct.pack("<3Q", LIST_MAGIC, 0, len(values))
    for number, array in enumerate(values):
        if array.dtype not in kinds:
            raise ValueError(f"array {number} is {array.dtype}: float32 or float16 can be written")
        yield struct.pack(f"<Iii{array.ndim}q3i", magic, DENSE, array.ndim, *array.shape, CPU, 0, kinds[array.dtype])
        if array.size:
            yield array.data.cast("B")
    yield struct.pack("<Q", len(names))
    for name in names:
        yield struct.pack("<Q", len(name)) + name


def _read(path: str | os.PathLike, kinds: Sequence[int]) -> tuple[list[np.ndarray], list[str]]:
    data = np.memmap(path, np.uint8, mode="r").data
    try:
        magic, _, count = struct.unpack_from("<3Q", data)
        if magic != LIST_MAGIC:
            raise ValueError(f"the file does not start as those of MXNet's nd.save do, with {LIST_MAGIC:#x}")
        arrays, place = [], 24
        for _ in range(count):
            array, place = _array(data, place, kinds)
            arrays.append(array)
        return arrays, list(_names(data, place))
    except struct.error:
        raise ValueError(CUT_SHORT) from None


def _array(data: memoryview, place: int, kinds: Sequence[int]) -> tuple[np.ndarray, int]:
    """The array that begins at a place, and where it ends."""
    magic, storage, dimensions = struct.unpack_from("<Iii", data, place)
    fewest = {ARRAY_MAGIC: 1, NUMPY_ARRAY_MAGIC: 0}
    if magic not in fewest or storage != DENSE or not fewest[magic] <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"there is no array at byte {place}")
    *shape, _, _, kind = struct.unpack_from(f"<{dimensions}q3i", data, place + 12)
    if kind not in kinds:
        raise ValueError(f"the array at byte {place} is not of float32{' or float16' if FLOAT16 in kinds else ''}")
    if min(shape, default=0) < 0:
        raise ValueError(f"the array at byte {place} has the shape {tuple(shape)}")
    start, count, size = place + 24 + 8 * dimensions, math.prod(shape), np.dtype(TYPES[kind]).itemsize
    if start + count * size > len(data):
        raise ValueError(CUT_SHORT)
    return np.frombuffer(data, TYPES[kind], count, start).reshape(shape), start + count * size


def _names(data: memoryview, place: int) -> Iterator[str]:
    (count,) = struct.unpack_from("<Q", data, place)
    place += 8
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, place)
        place += 8
        if place + length > len(data):
            raise ValueError(CUT_SHORT)
        yield bytes(data[place : place + length]).decode()
        place += length
