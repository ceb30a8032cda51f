"""Arrays as files that ``numpy.load`` reads, written without a copy and read without trust.

Layouts: NumPy's own .npy, version 1.0 (numpy.lib.format), and .npz, a zip archive of such files, stored as they are.

Shapes: L classes of a shard, E embedding.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from functools import partial
from typing import IO, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

# Of a block that is looked at before it is written: it stays in the processor's cache.
BLOCK = 1 << 20
PLAIN = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip archive knows: the same arrays give the same bytes


def array_chunks(arrays: Sequence[np.ndarray]) -> Iterator[bytes | memoryview]:
    """A .npy file of arrays stacked along their first axis.

    Args:
        arrays: one or more, each (rows, E) float32, C-contiguous.

    Raises:
        FloatingPointError: a number is not finite, with its row.
    """
    rows = sum(len(array) for array in arrays)
    yield _header((rows, *arrays[0].shape[1:]), arrays[0].dtype)
    first = 0
    for array in arrays:
        yield from _finite_blocks(array, partial(_row, first, rows))
        first += len(array)


def npz_chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """A .npz file of named arrays.

    Raises:
        FloatingPointError: a number is not finite, with the array's name.
    """
    stream = _Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            array = np.ascontiguousarray(array)
            with archive.open(zipfile.ZipInfo(name + ".npy", _EPOCH), "w", force_zip64=True) as member:
                member.write(_header(array.shape, array.dtype))
                for block in _finite_blocks(array.reshape(-1), partial(_of_array, name)):
                    member.write(block)
                    yield stream.taken()
    yield stream.taken()


def open_rows(path: str, rows: int, width: int) -> np.ndarray:
    """The array of a .npy file, mapped to be read: (rows, width) float32.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not of that shape and type.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        shape, dtype = _read_header(file, path)
        start = file.tell()
    if shape != (rows, width) or dtype != np.float32:
        raise ValueError(f"{path} holds {dtype} of shape {shape}, where the manifest has float32 of {(rows, width)}")
    if size != start + 4 * rows * width:
        raise ValueError(f"{path} has {size} bytes, its shape needs {start + 4 * rows * width}: it is cut short")
    if rows == 0:
        return np.empty((0, width), np.float32)  # nothing cannot be mapped
    return np.memmap(path, np.float32, "r", start, (rows, width))


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """All arrays of a .npz file by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds anything else, names the file and the array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {info.filename[: -len(".npy")]: _member(archive, info, path) for info in archive.infolist()}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}; take another checkpoint") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> np.ndarray:
    where = f"{path}: {info.filename[:200]!r}"
    if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
        raise ValueError(f"{where} is no array stored as it is; take another checkpoint")
    with archive.open(info) as file:
        shape, dtype = _read_header(file, where)
        # The archive was checked to be no longer than its file: nothing larger than that is allocated.
        left = min(info.file_size, os.path.getsize(path)) - file.tell()
        if math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"{where} claims shape {shape}, but has {left} bytes; take another checkpoint")
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _header(shape: tuple, dtype: np.dtype) -> bytes:
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def _read_header(file: IO[bytes], where: str) -> tuple[tuple, np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"it has version {version} of NumPy's format")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where} is no array of NumPy's: {error}; take another checkpoint") from None
    # An array of objects would be a pickle, which can run code.
    if fortran_order or dtype.str[1:] not in PLAIN or dtype.str[0] == ">" or any(size < 0 for size in shape):
        raise ValueError(f"{where} holds {dtype} of shape {shape}, which no checkpoint has; take another one")
    return shape, dtype


def _row(first: int, rows: int, row: int) -> str:
    return f"row {first + row} of {rows}"


def _of_array(name: str, _: int) -> str:
    return name


def _finite_blocks(array: np.ndarray, place: Callable[[int], str]) -> Iterable[memoryview]:
    """The bytes of an array (rows, ...), some at a time, once they have been found to be finite numbers."""
    rows = max(1, BLOCK // max(1, array[:1].nbytes))
    for row in range(0, len(array), rows):
        block = array[row : row + rows]
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            wrong = row + int(np.argwhere(~np.isfinite(block))[0][0])
            raise FloatingPointError(f"{place(wrong)} holds a number that is not finite")
        if block.nbytes:
            yield block.data.cast("B")


class _Stream(io.RawIOBase):
    """What zipfile writes to; hands out what has come since it was asked last. It cannot go back, and need not."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data) -> int:
        """Keeps the bytes."""
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        """What was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
