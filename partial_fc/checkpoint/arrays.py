"""Arrays as files that ``numpy.load`` reads, written without a copy and read without trust.

Layouts: NumPy's own .npy, version 1.0 (numpy.lib.format), and .npz, a zip archive of such files, stored as they are.

Shapes: L classes of a shard, E embedding.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO

import numpy as np

# Of a block that is looked at before it is written: it stays in the processor's cache.
BLOCK = 1 << 20
MAGIC = b"\x93NUMPY\x01\x00"
# As NumPy writes it. Its own reader takes more, objects too, which are pickles and run code; and it hands the text to
# Python's parser, so that a damaged one ends in whatever that raises.
_HEADER = re.compile(
    rb"\{'descr': '([<|](?:f[248]|[iu][1248]|b1))', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \} *\n"
)
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
            array = np.asarray(array, order="C")
            with archive.open(zipfile.ZipInfo(name + ".npy", _EPOCH), "w", force_zip64=True) as member:
                member.write(_header(array.shape, array.dtype))
                for block in _finite_blocks(array.reshape(-1), partial(_of_array, name)):
                    member.write(block)
                    yield stream.taken()
    yield stream.taken()


def open_array(path: str) -> np.ndarray:
    """The array of numbers in a .npy file, mapped to be read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no such array, or not all of it; names it.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        try:
            shape, dtype = _read_header(file)
        except ValueError as error:
            raise ValueError(f"{path} {error}") from None
        start = file.tell()
    needed = start + math.prod(shape) * dtype.itemsize
    if size != needed:
        raise ValueError(f"{path} has {size} bytes, its shape {shape} needs {needed}")
    if size == start:
        return np.empty(shape, dtype)  # nothing cannot be mapped
    return np.memmap(path, dtype, "r", start, shape)


def open_rows(path: str, rows: int, width: int) -> np.ndarray:
    """The array of a .npy file, mapped to be read: (rows, width) float32.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not of that shape and type; names it.
    """
    try:
        array = open_array(path)
    except ValueError as error:
        raise ValueError(f"{error}; use another checkpoint") from None
    if array.shape != (rows, width) or array.dtype != np.float32:
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}, where the manifest has float32 of {(rows, width)}; "
            "use another checkpoint"
        )
    return array


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """All arrays of a .npz file by name.

    Raises:
        OSError: the file cannot be read, or its directory of arrays points outside it; names it.
        ValueError: it holds anything else, names the file and the array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise ValueError("an array is there twice")
            # Nothing is allocated beyond the size of the file.
            if sum(info.file_size for info in members.values()) > os.path.getsize(path):
                raise ValueError("its arrays are larger than the file")
            return {name[: -len(".npy")]: _member(archive, info) for name, info in members.items()}
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from error
    except (ValueError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}; use another checkpoint") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = repr(info.filename[:200])
    if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
        raise ValueError(f"{name} is no array stored as it is")
    with archive.open(info) as file:
        try:
            shape, dtype = _read_header(file)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        left = info.file_size - file.tell()
        if math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"{name} claims shape {shape}, but has {left} bytes")
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _header(shape: tuple, dtype: np.dtype) -> bytes:
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    start = file.read(len(MAGIC) + 2)
    header = _HEADER.fullmatch(file.read(int.from_bytes(start[len(MAGIC) :], "little")))
    if not start.startswith(MAGIC) or header is None:
        raise ValueError("does not begin as an array of numbers in C order does, in version 1.0 of NumPy's format")
    return tuple(map(int, header[2].replace(b",", b" ").split())), np.dtype(header[1].decode())


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
