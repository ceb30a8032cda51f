"""Checks the declared content of a file of torch.save before PyTorch allocates memory for it.

A header of some hundred bytes can declare a tensor of any size: one element expanded 10^12 times, a quantized or sparse
tensor, which PyTorch allocates from its shape, or compressed zeros. The check reads the pickle in the file with
stand-ins for PyTorch's functions.
"""

import io
import math
import mmap
import os
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from partial_fc.data.pickle_bounds import OF_TENSORS, BoundedUnpickler
from partial_fc.utils.regular_files import open_regular

ITEM_BYTES = {
    f"{name}Storage": size
    for size, names in ((1, "Bool Byte Char"), (2, "Half BFloat16 Short"), (4, "Float Int"), (8, "Double Long"))
    for name in names.split()
}
KINDS = {
    "_rebuild_qtensor": "a quantized tensor",
    "_rebuild_sparse_tensor": "a sparse tensor",
    "_rebuild_sparse_csr_tensor": "a sparse tensor",
    "_rebuild_meta_tensor_no_storage": "a tensor of the device meta",
    "_rebuild_nested_tensor": "a nested tensor",
}
DIMENSIONS = 64  # maximum of PyTorch's tensors
DTYPE = re.compile(r"bool|(float|bfloat|complex|u?int)\d+\w*")
# (module, name) in the file -> stand-in. PyTorch calls only the names whose stand-in is a function.
STAND_INS = {
    ("torch", "Size"): tuple,
    ("torch", "device"): lambda *_: None,
    ("torch", "Tensor"): "Tensor",
    ("torch.nn.parameter", "Parameter"): "Parameter",
    ("torch.storage", "UntypedStorage"): "UntypedStorage",
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda tensor, *_: tensor,
}
REFUSED_MODULES = ("torch", "builtins", "__builtin__", "_codecs")  # torch.load would call further functions of these
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)  # begins files of PyTorch before 1.6


class StandIn:
    """Replaces an object that is neither a tensor nor a plain value, such as a training's arguments; holds nothing."""

    def __new__(cls, *arguments, **options):
        """Accepts any arguments."""
        return super().__new__(cls)

    def __init__(self, *arguments, **options):
        pass

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):  # for subclasses of dict
        pass


class UnsupportedTensorError(ValueError):
    """The file has a tensor that is not dense or does not store all of its elements; the message describes it."""


def check_header(path: str) -> set[str]:
    """Checks that the file's tensors are dense, and that reading them takes no more memory than the file's size.

    Returns:
        The full names of the classes that a StandIn has to replace.

    Raises:
        UnsupportedTensorError, OSError: A tensor is unsupported, or the file cannot be read.
        Exception: pickle and zipfile raise errors without a common base class.
    """
    with open_regular(path) as file:
        if file.read(4) == b"PK\3\4":
            return _check_archive(path)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # read() allocates at most the file's size
    with content:
        if content.read(len(MAGIC)) != MAGIC:
            raise ValueError("it was not written by torch.save")
        names: set[str] = set()
        for _ in ("version of the format", "sizes of types", "objects", "keys of their storages"):
            names |= _Header(content, lambda key: len(content), len(content)).read_names()
        return names


def _check_archive(path: str) -> set[str]:
    size = os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        sizes = {info.filename: info.file_size for info in members}
        compressed = [info.filename for info in members if info.compress_type != zipfile.ZIP_STORED]
        if compressed:
            raise UnsupportedTensorError(f"the compressed {compressed[0][:80]!r}")
        if len(sizes) != len(members) or sum(sizes.values()) > size:
            raise ValueError("its parts overlap")
        root = members[0].filename.split("/")[0]
        header = archive.read(f"{root}/data.pkl")
    if torch._C.PyTorchFileReader(path).get_record("data.pkl") != header:
        raise ValueError("it has two headers")  # PyTorch locates members differently than zipfile
    return _Header(io.BytesIO(header), lambda key: sizes[f"{root}/data/{key}"], size).read_names()


class _Storage(NamedTuple):
    kind: str
    elements: int


class _Header(BoundedUnpickler):
    """Reads the objects of a pickle, with None in place of tensors.

    Args:
        file: positioned at the start of the pickle.
        stored: maps the key of a storage to its number of bytes in the file.
        size: upper limit of the bytes of all storages.
    """

    def __init__(self, file: Any, stored: Callable[[str], int], size: int):
        super().__init__(file, OF_TENSORS)
        self._stored, self._left, self._seen, self._others = stored, size, set[str](), set[str]()
        self._stand_ins = {
            **STAND_INS,
            ("collections", "OrderedDict"): self._ordered,
            ("collections", "Counter"): partial(self._keyed, Counter),
            ("__builtin__", "set"): partial(self._keyed, set),
            ("torch._tensor", "_rebuild_from_type_v2"): lambda build, kind, items, state: self.call(build, items),
        }

    def read_names(self) -> set[str]:
        """Reads the objects; returns the full names of the classes that a StandIn has to replace."""
        self.load()
        return self._others

    def find_class(self, module: str, name: str) -> Any:
        """Returns the stand-in for a name."""
        if module == "torch._utils" and name in KINDS:
            raise UnsupportedTensorError(KINDS[name])
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return self._tensor
        if module == "torch" and name.endswith("Storage") and name not in ITEM_BYTES:
            raise UnsupportedTensorError(f"a tensor of torch.{name}")
        if module == "torch" and (name in ITEM_BYTES or DTYPE.fullmatch(name)):
            return name
        if (module, name) in self._stand_ins:
            return self._stand_ins[module, name]
        if module.partition(".")[0] in REFUSED_MODULES:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        self._others.add(f"{module}.{name}")
        return StandIn

    def _keyed(self, kind: type, items: Any = ()) -> Any:
        return kind(items if isinstance(items, Mapping) else map(self.key, items))

    def _ordered(self, items: Any = ()) -> OrderedDict:
        return OrderedDict(items if isinstance(items, Mapping) else ((self.key(key), value) for key, value in items))

    def persistent_load(self, pid: Any) -> _Storage:
        """Returns the stand-in for a storage."""
        _, kind, key, _, count, view = pid if len(pid) == 6 else (*pid, None)
        for plain in (*pid[:5], *(view or ())):
            self.key(plain)
        needed = count * ITEM_BYTES.get(kind, 1)
        if key not in self._seen:
            self._seen.add(key)
            self._left -= needed
        if count < 0 or needed > self._stored(key) or self._left < 0:
            raise ValueError("a storage is larger than its part of the file")
        return _Storage(kind, count)

    @staticmethod
    def _tensor(storage: _Storage, offset: int, size: tuple, stride: tuple, *more: Any) -> None:
        if not isinstance(storage, _Storage) or len(size) > DIMENSIONS or len(stride) != len(size):
            raise ValueError("a tensor has no storage, or more dimensions than PyTorch's")
        kind, count = storage
        if kind not in ITEM_BYTES:
            dtype = more[2] if isinstance(more[2], str) else "another type"  # in _rebuild_tensor_v3
            raise UnsupportedTensorError(f"a tensor of torch.{dtype}")
        if not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in (offset, *size, *stride)):
            raise ValueError("a tensor has a negative size")
        if math.prod(size) > count:
            raise UnsupportedTensorError(f"a tensor of shape {tuple(size)} with {count} stored elements")
        if 0 not in size and offset + sum((n - 1) * step for n, step in zip(size, stride)) >= count:
            raise ValueError("a tensor is larger than its storage")
