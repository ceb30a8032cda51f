"""Files of arrays that ``numpy.load`` reads: centers are written without a copy, and no file runs code when it is read.

Formats: NumPy's .npy (numpy.lib.format) and .npz, a zip archive of .npy files, uncompressed.

Shapes: L classes of a shard, E embedding.
"""

import io
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import numpy as np

from partial_fc.utils.atomic_io import new_file, no_follow
from partial_fc.utils.regular_files import open_regular, require_regular

# Bytes checked for finite numbers at a time, few enough to stay in the CPU cache until they are written.
BLOCK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of zip; a fixed one, so that equal arrays give equal bytes


def check_finite(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError, which names the file and the array, if a number in one is not finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has numbers that are not finite: take other weights")


def array_chunks(arrays: Iterable[np.ndarray], total: int | None = None) -> Iterator[bytes | memoryview]:
    """Yields a .npy file of arrays (rows, E) float32, C-contiguous, stacked along their first axis.

    ``total`` are their rows; None counts them, for which all are made first. Raises FloatingPointError, which names the
    row, if a number is not finite.
    """
    if total is None:
        arrays = list(arrays)
        total = sum(map(len, arrays))
    first = 0
    for number, array in enumerate(arrays):
        if number == 0:
            header, shape = io.BytesIO(), (total, *array.shape[1:])
            descr = np.lib.format.dtype_to_descr(array.dtype)
            np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
            yield header.getvalue()
        rows = max(1, BLOCK // max(1, array[:1].nbytes))
        for row in range(0, len(array), rows):
            block = array[row : row + rows]
            finite = np.isfinite(block)
            if not finite.all():
                wrong = first + row + int(np.argwhere(~finite)[0][0])
                raise FloatingPointError(f"row {wrong} of {total} holds a number that is not finite")
            if block.nbytes:
                yield block.data.cast("B")
        first += len(array)


def npz_chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yields a .npz file of named arrays. Raises FloatingPointError if a number is not finite; names the array."""
    stream = _Stream()
    with zipfile.ZipFile(stream, "w") as archive:  # type: ignore[call-overload]
        for name, array in arrays.items():
            array = np.asarray(array, order="C")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise FloatingPointError(f"{name} holds a number that is not finite")
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            yield from stream
            stream.clear()
    yield from stream


class _Stream(list):
    """The parts that zipfile has written; without ``seek``, so that it changes none of them later."""

    def write(self, data: bytes) -> int:
        """Adds a part; returns its number of bytes."""
        self.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing: zipfile calls it."""


def open_array(path: str) -> np.ndarray:
    """Maps the array in a .npy file into memory, read-only.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not such an array, or has another size than its array; names the file.
    """
    require_regular(path)
    size = os.path.getsize(path)
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        if size != array.offset + array.nbytes:
            raise ValueError(f"it has {size} bytes, but its array {array.shape} ends at {array.offset + array.nbytes}")
        return array
    except OSError:
        raise
    except Exception as error:  # NumPy raises nearly any for a damaged header, which is a Python literal
        raise ValueError(f"{path} is damaged, or no array of numbers: {_first_line(error)}") from None


def writable_array(path: str, shape: tuple[int, ...], dtype: type, is_new: bool) -> np.memmap:
    """Maps a .npy file into memory for writing; links are not followed. Raises OSError.

    Args:
        path: of the file; a new one replaces what is there.
        shape, dtype: of the array; those of the file, unless it is new.
        is_new: whether to create the file, of zeros.
    """
    if is_new:
        with suppress(FileNotFoundError):
            os.remove(path)
    with new_file(path) if is_new else open(path, "rb+", opener=no_follow) as file:
        if is_new:
            descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        else:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
        start = file.tell()
        os.truncate(file.fileno(), start + math.prod(shape) * np.dtype(dtype).itemsize)
        return np.memmap(file, dtype, "r+", start, shape)


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
        ValueError: The file contains anything else; names the file.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) != len(members):
                raise ValueError("two arrays have the same name")
            # So that no more memory is allocated than the file is large.
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("its arrays are compressed")
            if sum(member.file_size for member in members) > os.path.getsize(path):
                raise ValueError("its arrays are larger than the file")
            return {member.filename.removesuffix(".npy"): _read(archive, member) for member in members}
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # see open_array
        raise ValueError(f"{path} is damaged: {_first_line(error)}; use another checkpoint") from None


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    content = archive.read(member)  # whole, which checks its CRC
    header = io.BytesIO(content)
    try:
        np.lib.format.read_magic(header)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
        # Not read_array, which allocates what the header names. This refuses objects and other numbers of bytes.
        return np.frombuffer(content, dtype, offset=header.tell()).reshape(shape, order="F" if fortran_order else "C")
    except Exception as error:
        raise ValueError(f"{member.filename[:200]!r} is no array of numbers: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
