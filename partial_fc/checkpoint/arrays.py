"""Files of arrays that ``numpy.load`` reads, written without a copy and checked strictly when read.

Formats: NumPy's .npy, version 1.0 (numpy.lib.format), and .npz, a zip archive of uncompressed .npy files.

Shapes: L classes of a shard, E embedding.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import numpy as np

# Bytes checked for finite numbers at a time, few enough to stay in the CPU cache until they are written.
BLOCK = 1 << 20
MAGIC = b"\x93NUMPY\x01\x00"
# As NumPy writes it. NumPy's reader also accepts objects, whose pickles run code, and passes the text to Python's
# parser, which raises all kinds of errors for a damaged header.
_HEADER = re.compile(
    rb"\{'descr': '([<|](?:f[248]|[iu][1248]|b1))', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \} *\n"
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of zip; a fixed one, so that equal arrays give equal bytes


def array_chunks(arrays: Sequence[np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yields a .npy file of arrays stacked along their first axis.

    Args:
        arrays: one or more, each (rows, E) float32, C-contiguous.

    Raises:
        FloatingPointError: A number is not finite; names its row.
    """
    rows = sum(len(array) for array in arrays)
    yield _header((rows, *arrays[0].shape[1:]), arrays[0].dtype)
    first = 0
    for array in arrays:
        yield from _finite_blocks(array, first=first, total=rows)
        first += len(array)


def npz_chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yields a .npz file of named arrays.

    Raises:
        FloatingPointError: A number is not finite; names the array.
    """
    stream = _Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            array = np.asarray(array, order="C")
            with archive.open(zipfile.ZipInfo(name + ".npy", _EPOCH), "w", force_zip64=True) as member:
                member.write(_header(array.shape, array.dtype))
                for block in _finite_blocks(array.reshape(-1), name):
                    member.write(block)
                    yield from stream.take()
    yield from stream.take()


def open_array(path: str) -> np.ndarray:
    """Maps the array of numbers in a .npy file into memory, read-only.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not such an array, or is truncated; names the file.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        shape, dtype = _read_header(file, path)
        start = file.tell()
    needed = start + math.prod(shape) * dtype.itemsize
    if size != needed:
        raise ValueError(f"{path} has {size} bytes, its shape {shape} needs {needed}")
    if size == start:
        return np.empty(shape, dtype)  # zero bytes cannot be mapped
    return np.memmap(path, dtype, "r", start, shape)


def open_rows(path: str, rows: int, width: int) -> np.ndarray:
    """Maps the array of a .npy file into memory, read-only: (rows, width) float32.

    Raises:
        OSError: The file cannot be read.
        ValueError: The array has another shape or dtype; names the file.
    """
    try:
        array = open_array(path)
    except ValueError as error:
        raise ValueError(f"{error}; use another checkpoint") from None
    if array.shape != (rows, width) or array.dtype != np.float32:
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}, expected float32 of {(rows, width)} by the manifest; "
            "use another checkpoint"
        )
    return array


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Reads all arrays of a .npz file by name.

    Raises:
        OSError: The file cannot be read, or its directory points outside it; names the file.
        ValueError: The file contains anything else; names the file and the array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise ValueError("two arrays have the same name")
            # So that no more memory is allocated than the file is large.
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
        raise ValueError(f"{name} is not an uncompressed .npy file")
    with archive.open(info) as file:
        shape, dtype = _read_header(file, name)
        size = info.file_size - file.tell()
        if math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{name} has the shape {shape}, but {size} bytes")
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _header(shape: tuple, dtype: np.dtype) -> bytes:
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def _read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype]:
    start = file.read(len(MAGIC) + 2)
    header = _HEADER.fullmatch(file.read(int.from_bytes(start[len(MAGIC) :], "little")))
    if not start.startswith(MAGIC) or header is None:
        raise ValueError(f"{name} has no header of an array of numbers in C order, in version 1.0 of NumPy's format")
    return tuple(map(int, header[2].replace(b",", b" ").split())), np.dtype(header[1].decode())


def _finite_blocks(array: np.ndarray, name: str = "", first: int = 0, total: int = 0) -> Iterable[memoryview]:
    """Yields the bytes of an array (rows, ...) in blocks, each checked for numbers that are not finite.

    An error has its name or, without one, the row: row 0 of the array is row ``first`` of ``total``.
    """
    rows = max(1, BLOCK // max(1, array[:1].nbytes))
    for row in range(0, len(array), rows):
        block = array[row : row + rows]
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            wrong = first + row + int(np.argwhere(~np.isfinite(block))[0][0])
            raise FloatingPointError(f"{name or f'row {wrong} of {total}'} holds a number that is not finite")
        if block.nbytes:
            yield block.data.cast("B")


class _Stream(io.RawIOBase):
    """What zipfile writes; it cannot seek."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data) -> int:
        """Keeps the bytes and returns their number."""
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        """Returns what was written since the last call."""
        parts, self._parts = self._parts, []
        return parts
