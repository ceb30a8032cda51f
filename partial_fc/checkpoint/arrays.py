"""Array files that ``numpy.load`` reads. Centers are written without a copy, and reading a file runs no code.

Formats: NumPy's .npy (numpy.lib.format) and .npz, an uncompressed zip archive of .npy files.

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

# Bytes checked for finite numbers at a time; few enough to stay in the CPU cache until they are written.
BLOCK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal arrays give equal files; the earliest one in zip


def check_finite(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError, which names the file and the array, if a number is not finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has numbers that are not finite: take other weights")


def float_values(numbers: np.ndarray) -> np.ndarray:
    """Returns float32 for uint16, which are the bits of bfloat16, and other arrays as they are."""
    return (numbers.astype(np.uint32) << 16).view(np.float32) if numbers.dtype == np.uint16 else numbers


def array_chunks(arrays: Iterable[np.ndarray], total: int | None = None) -> Iterator[bytes | memoryview]:
    """Yields a .npy file of C-contiguous arrays (rows, E), float32 or bits of bfloat16, stacked along their first axis.

    ``total`` is the number of rows; None counts them, which needs all arrays in memory. Raises FloatingPointError,
    which names the row, if a number is not finite.
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
            finite = np.isfinite(float_values(block))
            if not finite.all():
                wrong = first + row + int(np.argwhere(~finite)[0][0])
                raise FloatingPointError(f"row {wrong} of {total} holds a number that is not finite")
            if block.nbytes:
                yield block.data.cast("B")
        first += len(array)


def npz_chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yields a .npz file of named arrays. Raises FloatingPointError, which names the array, if one is not finite."""
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
    """The parts that zipfile has written. Has no ``seek``, so that zipfile does not go back to change a part."""

    def write(self, data: bytes) -> int:
        """Adds a part; returns its number of bytes."""
        self.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing; zipfile calls it."""


def open_array(path: str) -> np.ndarray:
    """Maps the array in a .npy file into memory, read-only.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file holds no array of numbers, or has another size than its array; the message names the file.
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
    except Exception as error:  # a damaged header, which is a Python literal, makes NumPy raise nearly anything
        raise ValueError(f"{path} is damaged, or not an array of numbers: {_first_line(error)}") from None


def writable_array(path: str, shape: tuple[int, ...], dtype: type, is_new: bool) -> np.memmap:
    """Maps a .npy file into memory for writing; does not follow links. Raises OSError.

    Args:
        path: path of the file; a new file replaces an existing one.
        shape, dtype: shape and dtype of the array; an existing file must have been created with the same ones.
        is_new: whether to create the file, filled with zeros.
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
    """Maps the array of a .npy file into memory, read-only: (rows, width) float32, or uint16, see float_values.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has another shape or dtype, or is damaged; the message names the file.
    """
    try:
        array = open_array(path)
    except ValueError as error:
        raise ValueError(f"{error}; use another checkpoint") from None
    if array.shape != (rows, width) or array.dtype not in (np.float32, np.uint16):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}, expected float32, or uint16 for bfloat16, of "
            f"{(rows, width)} by the manifest; use another checkpoint"
        )
    return array


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Reads all arrays of a .npz file by name.

    Raises:
        OSError: The file cannot be read, or its zip directory points outside it; the message names the file.
        ValueError: The file is damaged or holds anything else; the message names the file.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) != len(members):
                raise ValueError("two arrays have the same name")
            # A hostile file must not make us allocate more memory than its own size.
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
    content = archive.read(member)  # reading the whole member checks its CRC
    header = io.BytesIO(content)
    try:
        np.lib.format.read_magic(header)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
        # Not read_array, which allocates what the header says. frombuffer refuses objects, and reshape a wrong size.
        return np.frombuffer(content, dtype, offset=header.tell()).reshape(shape, order="F" if fortran_order else "C")
    except Exception as error:
        raise ValueError(f"{member.filename[:200]!r} is not an array of numbers: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
