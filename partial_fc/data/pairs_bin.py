"""Validation pairs, `<name>.bin`: a pickle of (list of 2P encoded images, list of P bool), as insightface made them.

Pickles can run code. These are downloaded files, so they are read by an unpickler that knows byte strings, lists,
booleans, and uint8 or bool numpy arrays, and refuses the rest. numpy's own unpickling is not used either: arrays are
kept as the bytes they consist of.

Shapes: P pairs; images 2p and 2p + 1 make pair p.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from partial_fc.utils.atomic_io import replace_file

BYTE_TYPES = ("u1", "uint8", "b1", "bool")


def write_pairs(path: str | os.PathLike, images: Sequence[bytes], issame: Sequence[bool]) -> None:
    """Write 2P encoded images and P flags. The same input gives the same bytes. Raises ValueError if sizes differ."""
    if len(images) != 2 * len(issame):
        raise ValueError(f"{path}: {len(issame)} pairs need {2 * len(issame)} images, got {len(images)}")
    content = ([bytes(image) for image in images], [bool(same) for same in issame])
    replace_file(os.fspath(path), [pickle.dumps(content, protocol=4)])


def read_pairs(path: str | os.PathLike) -> tuple[list[bytes], np.ndarray]:
    """(2P encoded images, issame (P,) bool). Raises OSError, or ValueError naming the file if it is no such pickle."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} (validation pairs) is not there: check the data set's folder")
    with open(path, "rb") as file:
        try:
            images, issame = PairsUnpickler(file, encoding="bytes").load()
            images, flags = [as_bytes(image) for image in images], as_flags(issame)
        # A damaged pickle can end in nearly any exception of the unpickler.
        except (pickle.UnpicklingError, ValueError, TypeError, EOFError, LookupError, AttributeError) as error:
            raise ValueError(f"{path} does not hold validation pairs ({error}); download or write it again") from None
    if len(images) != 2 * len(flags) or not len(flags):
        raise ValueError(f"{path} holds {len(images)} images for {len(flags)} pairs; download or write it again")
    return images, flags


class ByteArray:
    """Stands for a pickled numpy array of single bytes: only what it consists of."""

    def __init__(self, data: bytes = b""):
        self.data = data

    def __setstate__(self, state: tuple) -> None:
        _version, _shape, dtype, _fortran_order, data = state
        self.data = byte_string(data, dtype)


class ByteType:
    """Stands for a pickled numpy dtype. Raises UnpicklingError for other than uint8 and bool."""

    def __init__(self, name: Any, *_flags: Any):
        text = name.decode("latin1") if isinstance(name, bytes) else name
        if text not in BYTE_TYPES:
            raise pickle.UnpicklingError(f"numpy arrays of {text!r} do not belong there")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for single bytes."""


def byte_string(data: Any, dtype: Any) -> bytes:
    """The array's bytes, of which `dtype` must be a ByteType."""
    if not isinstance(dtype, ByteType):
        raise pickle.UnpicklingError("an array without a type")
    return data.encode("latin1") if isinstance(data, str) else bytes(data)


def reconstruct(_array_class: Any, _shape: Any, _type_code: Any) -> ByteArray:
    """numpy.core.multiarray._reconstruct: an empty array that __setstate__ fills."""
    return ByteArray()


def from_buffer(data: Any, dtype: Any, _shape: Any, _order: Any) -> ByteArray:
    """numpy.core.numeric._frombuffer, how protocol 5 writes arrays."""
    return ByteArray(byte_string(data, dtype))


def scalar(dtype: Any, data: Any) -> bool:
    """numpy.core.multiarray.scalar, how numpy.bool_ is pickled."""
    return byte_string(data, dtype) != b"\0"


def encode(text: str, encoding: str) -> bytes:
    """_codecs.encode, how Python 3 writes bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r} does not belong there")
    return text.encode("latin1")


def empty_bytes() -> bytes:
    """bytes(), how Python 3 writes b"" in the protocols of Python 2."""
    return b""


ALLOWED = {
    ("numpy", "ndarray"): ByteArray,
    ("numpy", "dtype"): ByteType,
    ("_codecs", "encode"): encode,
    ("__builtin__", "bytes"): empty_bytes,
}
for package in ("numpy.core", "numpy._core"):
    ALLOWED[package + ".multiarray", "_reconstruct"] = reconstruct
    ALLOWED[package + ".multiarray", "scalar"] = scalar
    ALLOWED[package + ".numeric", "_frombuffer"] = from_buffer


class PairsUnpickler(pickle.Unpickler):
    """An unpickler to which only the names in ALLOWED exist."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for the named class or function. Raises UnpicklingError for every other name."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return ALLOWED[module, name]


def as_bytes(image: Any) -> bytes:
    """An encoded image, stored as bytes or as an array of bytes."""
    data = image.data if isinstance(image, ByteArray) else image
    if not isinstance(data, (bytes, bytearray)) or not data:
        raise ValueError("an image is not a byte string")
    return bytes(data)


def as_flags(issame: Any) -> np.ndarray:
    """(P,) bool of a list of bool (or 0 and 1) or an array of bool."""
    flags = list(issame.data) if isinstance(issame, ByteArray) else list(issame)
    if any(not isinstance(flag, int) or flag not in (0, 1) for flag in flags):
        raise ValueError("the flags of the pairs are not all true or false")
    return np.array(flags, dtype=bool)
