"""Validation pairs, `<name>.bin`: a pickle of (list of 2P encoded images, list of P bool), as written by insightface.

Pickles can execute code, and these files are downloaded. This unpickler therefore accepts only byte strings, lists,
booleans, and NumPy arrays of uint8 or bool, which it reads as bytes without calling NumPy. Time and memory are
proportional to the size of the file, see pickle_bounds.py.

Shapes: P pairs; images 2p and 2p + 1 form pair p.
"""

import io
import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.regular_files import open_regular

from .pickle_bounds import DAMAGE, OF_LISTS, BoundedUnpickler

BYTE_TYPES = ("u1", "uint8", "b1", "bool")


def write_pairs(path: str | os.PathLike, images: Sequence[bytes], issame: Sequence[bool]) -> None:
    """Writes 2P encoded images and P flags, reproducibly. Raises ValueError if the lengths do not match."""
    if len(images) != 2 * len(issame):
        raise ValueError(f"{path}: {len(issame)} pairs need {2 * len(issame)} images, got {len(images)}")
    content = ([bytes(image) for image in images], [bool(same) for same in issame])
    replace_file(os.fspath(path), [pickle.dumps(content, protocol=4)])


def read_pairs(path: str | os.PathLike) -> tuple[list[bytes], np.ndarray]:
    """Reads (2P encoded images, issame (P,) bool). Raises OSError or ValueError, naming the file."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} (validation pairs) does not exist: check the folder of the data set")
    with open_regular(path) as file:
        content = file.read()
    try:
        images, issame = PairsUnpickler(content).load()
        bytes_of = {id(image): as_bytes(image) for image in images}  # an image of several pairs is copied once
        images = [bytes_of[id(image)] for image in images]
        flags = list(issame.data if isinstance(issame, ByteArray) else issame)
        if any(not isinstance(flag, int) or flag not in (0, 1) for flag in flags):
            raise ValueError("the flags of the pairs are not all true or false")
    except DAMAGE as error:
        raise ValueError(f"{path} is not a file of validation pairs ({error}); download it again") from None
    if len(images) != 2 * len(flags) or not len(flags):
        raise ValueError(f"{path} contains {len(images)} images for {len(flags)} pairs; download or write it again")
    return images, np.array(flags, dtype=bool)


class ByteArray:
    """Stands for a pickled NumPy array of single bytes."""

    def __init__(self, data: bytes | bytearray = b""):
        self.data = data

    def __setstate__(self, state: tuple) -> None:
        _version, _shape, dtype, _fortran_order, data = state
        if not isinstance(data, bytes):
            raise pickle.UnpicklingError(f"an array of {type(data).__name__} is not allowed")
        self.data = byte_string(data, dtype)


class ByteType:
    """Stands for a pickled NumPy dtype. Raises UnpicklingError unless it is uint8 or bool."""

    def __init__(self, name: Any, *_flags: Any):
        text = name[:20] if isinstance(name, (str, bytes)) else type(name).__name__
        if (text.decode("latin1") if isinstance(text, bytes) else text) not in BYTE_TYPES:
            raise pickle.UnpicklingError(f"NumPy arrays of {text!r} are not allowed")

    def __setstate__(self, state: Any) -> None:
        """Ignores byte order and alignment, which do not matter for single bytes."""


def byte_string(data: Any, dtype: Any) -> bytes | bytearray:
    """Returns the bytes of an array. Raises UnpicklingError if the dtype is not a ByteType."""
    if not isinstance(dtype, ByteType):
        raise pickle.UnpicklingError("an array has no dtype")
    if not isinstance(data, (bytes, bytearray)):
        raise pickle.UnpicklingError(f"an array of {type(data).__name__} is not allowed")  # bytes(n) would be n zeros
    return data


def scalar(dtype: Any, data: Any) -> bool:
    """Stands for numpy.core.multiarray.scalar, which pickles call for numpy.bool_."""
    return byte_string(data, dtype) != b"\0"


def encode(text: str, encoding: str) -> bytes:
    """Stands for _codecs.encode, with which Python 3 stores bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("text in another encoding than latin1 is not allowed")
    return text.encode("latin1")


ALLOWED = {
    ("numpy", "ndarray"): ByteArray,
    ("numpy", "dtype"): ByteType,
    ("_codecs", "encode"): encode,
    ("__builtin__", "bytes"): lambda: b"",  # b"", written by Python 3 in the protocols of Python 2
}
for package in ("numpy.core", "numpy._core"):
    ALLOWED[package + ".multiarray", "_reconstruct"] = lambda *_: ByteArray()  # filled by __setstate__
    ALLOWED[package + ".multiarray", "scalar"] = scalar
    ALLOWED[package + ".numeric", "_frombuffer"] = lambda data, dtype, *_: ByteArray(byte_string(data, dtype))


class PairsUnpickler(BoundedUnpickler):
    """An unpickler that allows only the names in ALLOWED."""

    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content), OF_LISTS, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a class or function. Raises UnpicklingError for names that are not allowed."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module[:40]}.{name[:40]} is not allowed")
        return ALLOWED[module, name]


def as_bytes(image: Any) -> bytes:
    """Converts an encoded image, stored as bytes or as an array, to bytes."""
    data = image.data if isinstance(image, ByteArray) else image
    if not isinstance(data, (bytes, bytearray)) or not data:
        raise ValueError("an image is not a byte string")
    return bytes(data)
