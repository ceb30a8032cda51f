"""The folder of an index: manifest.json, the lists, and the names of its entries.

Every change writes new files beside those in use, then the manifest that names them, then removes the old ones. A
command that ends before leaves the old index, and a search that has it open goes on in the old files.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from partial_fc.inference.index import Origin
from partial_fc.utils.atomic_io import replace_file, sync_folder
from partial_fc.utils.json_object import read_object

from .ivf import DTYPES, Lists, header_checksum
from .names import ENDINGS, Names, write_names
from .writer import Writer

MANIFEST = "manifest.json"
FORMAT, VERSION = "partial_fc index", 1
LARGEST = 1 << 16  # bytes of a manifest
WRITTEN = re.compile(r"lists-\d+\.faiss|names-\d+\.(?:txt|npy)")


class Manifest(NamedTuple):
    """Content of the manifest.

    Attributes:
        dimension: E.
        dtype: a name of DTYPES.
        entries: number of embeddings.
        change: number of the last change, which is in the name of the file of the lists.
        names: number of the change that wrote the names.
        files: name -> bytes.
        origin: of the embeddings; None if it is unknown.
        checksums: of the file of the lists up to the entries, and of the entries' numbers.
    """

    dimension: int
    dtype: str
    entries: int
    change: int
    names: int
    files: dict[str, int]
    origin: Origin | None
    checksums: list[int]


class IndexFolder:
    """An index on disk.

    Args:
        folder: of the index.

    Raises:
        OSError: There is no index, or a file cannot be read.
        ValueError: A file is damaged or belongs to another version; names it.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.manifest = _read_manifest(os.path.join(folder, MANIFEST))
        for name, size in self.manifest.files.items():
            path = os.path.join(folder, name)
            if os.path.getsize(path) != size:
                raise ValueError(f"{path} is damaged: it has {os.path.getsize(path)} bytes instead of {size}")
        self.names = Names(os.path.join(folder, _names(self.manifest.names)))

    @cached_property
    def lists(self) -> Lists:
        """The lists, see `Lists.open`."""
        about, path = self.manifest, self._path(_lists(self.manifest.change))
        damaged = ValueError(f"{path} is damaged: its checksums are not those of {MANIFEST}; build the index again")
        if header_checksum(path, about.entries, about.dimension, about.dtype) != about.checksums[0]:
            raise damaged
        lists = Lists.open(path, about.dimension, about.dtype)
        if len(lists) != about.entries or lists.checksum() != about.checksums[1]:
            raise damaged
        return lists

    def writer(self) -> Writer:
        """Returns a writer of these entries and others."""
        return Writer(self.folder, self.manifest.dimension, self.manifest.dtype, self.lists)

    def present(self) -> tuple[np.ndarray, list[str]]:
        """Returns the numbers of the entries in order, and their names."""
        there = self.lists.present(len(self.names))
        return np.flatnonzero(there), [name for name, kept in zip(self.names, there) if kept]

    def check(self, what: str, dimension: int, origin: Origin | None) -> None:
        """Raises ValueError for embeddings that cannot be compared with those of the index."""
        if dimension != self.manifest.dimension:
            raise ValueError(
                f"{what} has embeddings of dimension {dimension}, {self.folder} those of dimension "
                f"{self.manifest.dimension}: take those of the same model"
            )
        if origin and self.manifest.origin:
            origin.check(what, self.manifest.origin, self.folder)

    def write(self, lists: Writer, new_names: Sequence[str] = ()) -> None:
        """Replaces the lists, and appends names. Raises OSError."""
        about = self.manifest
        change = about.change + 1
        if new_names:
            write_names(self._path(_names(change)), new_names, self._path(_names(about.names)))
        names = change if new_names else about.names
        _write(self.folder, lists, about._replace(entries=len(lists), change=change, names=names))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def create(folder: str, lists: Writer, dtype: str, dimension: int, names: Sequence[str], origin: Origin | None) -> None:
    """Writes an index into an empty folder. Raises OSError."""
    write_names(os.path.join(folder, _names(1)), names)
    _write(folder, lists, Manifest(dimension, dtype, len(lists), 1, 1, {}, origin, []))


@contextmanager
def changing(folder: str) -> Iterator[IndexFolder]:
    """Yields the index for a command that changes it. Raises OSError if another one does at the same time."""
    path = os.path.join(folder, MANIFEST)
    _read_manifest(path)  # for its error where there is no folder
    with locked(folder):
        try:
            yield IndexFolder(folder)
        finally:
            _clean(folder, _read_manifest(path))  # of a change that failed, or was killed before


def is_index(path: str) -> bool:
    """Returns whether a path is that of an index, and not of embeddings."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def files_of(path: str) -> list[str]:
    """Returns the names of the files of an index; none where no index can be read."""
    try:
        return [MANIFEST, *_files(_read_manifest(os.path.join(path, MANIFEST)))]
    except (OSError, ValueError):
        return []


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other commands from changing an index. Raises OSError if one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder} is being changed by another command: wait for its end") from None
        yield
    finally:
        os.close(descriptor)


def _lists(change: int) -> str:
    return f"lists-{change}.faiss"


def _names(change: int) -> str:
    return f"names-{change}"


def _files(about: Manifest) -> list[str]:
    return [_lists(about.change), *(_names(about.names) + ending for ending in ENDINGS)]


def _write(folder: str, lists: Writer, about: Manifest) -> None:
    path = os.path.join(folder, _lists(about.change))
    of_numbers = lists.save(path)
    sizes = {}
    for name in _files(about):
        with open(os.path.join(folder, name), "r+b") as file:
            os.fsync(file.fileno())  # before the manifest that names it
            sizes[name] = os.fstat(file.fileno()).st_size
    checksums = [header_checksum(path, about.entries, about.dimension, about.dtype), of_numbers]
    about = about._replace(files=sizes, checksums=checksums)
    content = {"format": FORMAT, "version": VERSION, **about._asdict()}
    content["origin"] = about.origin and about.origin._asdict()
    sync_folder(folder)
    replace_file(os.path.join(folder, MANIFEST), [json.dumps(content, indent=1).encode()])


def _clean(folder: str, about: Manifest) -> None:
    for name in set(os.listdir(folder)) - {MANIFEST, *_files(about)}:
        if WRITTEN.fullmatch(name):
            with suppress(OSError):
                os.remove(os.path.join(folder, name))


def _read_manifest(path: str) -> Manifest:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist: give the folder that partial-fc index build wrote")
    try:
        content = read_object(path, LARGEST)
        if content.pop("format") != FORMAT:
            raise ValueError("it describes no index")
        version = content.pop("version")
        if version != VERSION:
            raise ValueError(f"it is of version {version} of the format, this program reads {VERSION}")
        return _checked(content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be used ({error}): build the index again") from None


def _checked(content: dict[str, Any]) -> Manifest:
    origin = content.pop("origin")
    about = Manifest(**content, origin=origin and Origin.read(origin))
    if not isinstance(about.files, dict):
        raise ValueError("its files are invalid")
    numbers = (about.dimension, about.entries, about.change, about.names, *about.checksums, *about.files.values())
    if not all(type(number) is int and number >= 0 for number in numbers) or len(about.checksums) != 2:
        raise ValueError("a number is invalid")
    if about.dtype not in DTYPES:
        raise ValueError(f"its dtype is none of {', '.join(DTYPES)}")
    if sorted(about.files) != sorted(_files(about)):
        raise ValueError(f"it names the files {', '.join(about.files)}")
    return about
