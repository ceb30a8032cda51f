"""Files of MXNet's ``nd.save``, read without a copy in memory and written with all errors reported.

(MXNet itself overwrites an existing file, and does not report a truncated one on a full disk.)

Format, little-endian: uint64 magic number, 0, number of arrays. Each array: uint32 magic number, int32 storage type,
int32 number of dimensions, int64 per dimension, int32 device type and number, int32 dtype, the elements. Then uint64
number of names, either 0 or the number of arrays; each name: uint64 length, UTF-8.
"""

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partial_fc.utils.regular_files import open_regular

LIST_MAGIC = 0x112
# MXNet reads no mixture, so all arrays of a file have the same number: the second one if any array has no rows or no
# dimensions (mx.util.np_shape).
ARRAY_MAGIC, NUMPY_ARRAY_MAGIC = 0xF993FAC9, 0xF993FACA
DENSE, CPU = 0, 1
FLOAT32, FLOAT16 = 0, 2
TYPES = {FLOAT32: "<f4", FLOAT16: "<f2"}
MAX_DIMENSIONS = 32
TRUNCATED = "the file is truncated"


def saved_arrays(path: str | os.PathLike) -> list[np.ndarray]:
    """Maps all float32 arrays of a file into memory, read-only; raises ValueError for other files."""
    return _read(path, (FLOAT32,))[0]


def named_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Maps the named float32 or float16 arrays of a file into memory, read-only; raises ValueError for other files."""
    arrays, names = _read(path, (FLOAT32, FLOAT16))
    if not len(set(names)) == len(names) == len(arrays):
        raise ValueError(f"{len(arrays)} arrays have {len(names)} names, {len(set(names))} of them unique")
    return dict(zip(names, arrays))


def array_file_chunks(arrays: Sequence[np.ndarray] | Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yields a file of C-contiguous float32 or float16 arrays in pieces; a mapping gives the arrays names."""
    names = [name.encode() for name in arrays] if isinstance(arrays, Mapping) else []
    values = list(arrays.values()) if isinstance(arrays, Mapping) else arrays
    kinds = {np.dtype(name): kind for kind, name in TYPES.items()}
    magic = ARRAY_MAGIC if all(array.size and array.ndim for array in values) else NUMPY_ARRAY_MAGIC
    yield struct.pack("<3Q", LIST_MAGIC, 0, len(values))
    for number, array in enumerate(values):
        if array.dtype not in kinds:
            raise ValueError(f"array {number} is {array.dtype}, expected float32 or float16")
        yield struct.pack(f"<Iii{array.ndim}q3i", magic, DENSE, array.ndim, *array.shape, CPU, 0, kinds[array.dtype])
        if array.size:
            yield array.data.cast("B")
    yield struct.pack("<Q", len(names))
    for name in names:
        yield struct.pack("<Q", len(name)) + name


def _read(path: str | os.PathLike, kinds: Sequence[int]) -> tuple[list[np.ndarray], list[str]]:
    with open_regular(path) as file:
        data = np.memmap(file, np.uint8, mode="r").data
    try:
        magic, _, count = struct.unpack_from("<3Q", data)
        if magic != LIST_MAGIC:
            raise ValueError(f"not a file of MXNet's nd.save: it does not start with {LIST_MAGIC:#x}")
        arrays, offset = [], 24
        for _ in range(count):
            array, offset = _array(data, offset, kinds)
            arrays.append(array)
        return arrays, list(_names(data, offset))
    except struct.error:
        raise ValueError(TRUNCATED) from None


def _array(data: memoryview, offset: int, kinds: Sequence[int]) -> tuple[np.ndarray, int]:
    """Returns the array at an offset, and the offset of its end."""
    magic, storage, dimensions = struct.unpack_from("<Iii", data, offset)
    min_dimensions = {ARRAY_MAGIC: 1, NUMPY_ARRAY_MAGIC: 0}
    if magic not in min_dimensions or storage != DENSE or not min_dimensions[magic] <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"no dense array at byte {offset}")
    *shape, _, _, kind = struct.unpack_from(f"<{dimensions}q3i", data, offset + 12)
    if kind not in kinds:
        raise ValueError(f"the array at byte {offset} is not float32{' or float16' if FLOAT16 in kinds else ''}")
    if min(shape, default=0) < 0:
        raise ValueError(f"the array at byte {offset} has the shape {tuple(shape)}")
    start, count, size = offset + 24 + 8 * dimensions, math.prod(shape), np.dtype(TYPES[kind]).itemsize
    if start + count * size > len(data):
        raise ValueError(TRUNCATED)
    return np.frombuffer(data, TYPES[kind], count, start).reshape(shape), start + count * size


def _names(data: memoryview, offset: int) -> Iterator[str]:
    (count,) = struct.unpack_from("<Q", data, offset)
    offset += 8
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, offset)
        offset += 8
        if offset + length > len(data):
            raise ValueError(TRUNCATED)
        yield bytes(data[offset : offset + length]).decode()
        offset += length
