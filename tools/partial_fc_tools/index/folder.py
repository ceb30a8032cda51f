"""The folder of an index: manifest.json, the lists with their checksums, the names, and some embeddings as added.

Every change writes new files beside those in use, then the manifest that names them, then removes the old ones. A
command that ends before leaves the old index, and a search that has it open goes on in the old files.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.utils.atomic_io import new_file, no_follow, replace_file, sync_folder
from partial_fc.utils.folder_lock import locked
from partial_fc.utils.json_object import read_object
from partial_fc.utils.regular_files import open_regular
from partial_fc.utils.shared_folders import refuse_writable_by_others
from partial_fc_tools.inference.index import Origin

from .ivf import DTYPES, Lists, damaged
from .names import ENDINGS, Names, write_names
from .writer import Writer, added_type, drawn

MANIFEST = "manifest.json"
FORMAT, VERSION = "partial_fc index", 2
# By version: what has a CRC-32 in the manifest. In version 1 that was, beside the header, the numbers of all entries.
CHECKED = {1: ("header", "numbers"), 2: ("header", "lists", "added", "names")}
LARGEST = 1 << 16  # bytes of a manifest
WRITTEN = re.compile(r"lists-\d+\.faiss|(?:checksums|added)-\d+\.npy|names-\d+\.(?:txt|npy)")


class Manifest(NamedTuple):
    """Content of the manifest.

    Attributes:
        version: of the format.
        dimension: E.
        dtype: a name of DTYPES.
        entries: number of embeddings.
        change: number of the last change, which is in the names of the files but those of the names.
        names: number of the change that wrote the names.
        files: name -> bytes.
        origin: of the embeddings; None if it is unknown.
        checksums: by CHECKED; the header is the file of the lists up to the entries.
    """

    version: int
    dimension: int
    dtype: str
    entries: int
    change: int
    names: int
    files: dict[str, int]
    origin: Origin | None
    checksums: dict[str, int]


class IndexFolder:
    """An index on disk, all of whose files are open.

    Args:
        folder: of the index.

    Attributes:
        manifest: its content.
        names: of the entries by number, and of entries that were removed.
        lists: the embeddings.

    Raises:
        ImportError: faiss is missing.
        OSError: There is no index, a file cannot be read, or all users can replace files in the folder.
        ValueError: A file is damaged or belongs to another version; names it.
    """

    names: Names
    lists: Lists
    _added: np.ndarray | None  # of `added_type`; None in version 1

    def __init__(self, folder: str):
        self.folder = folder
        while True:
            self.manifest = _read_manifest(self._path(MANIFEST))
            try:
                return self._open()
            except (OSError, ValueError):
                if _read_manifest(self._path(MANIFEST)) == self.manifest:  # else a change has replaced the files
                    raise

    def _open(self) -> None:
        about, self._added, checksums = self.manifest, None, None
        for name, size in about.files.items():
            path = self._path(name)
            with open_regular(path, self.folder) as file:
                held = os.fstat(file.fileno()).st_size
            if held != size:
                raise ValueError(f"{path} is damaged: it has {held} bytes instead of {size}")
        self.names = Names(self._path(_names(about.names)))
        path = self._path(_lists(about.change))
        if about.version > 1:
            self._added, checksums = (self._array(file(about.change)) for file in (_added, _checksums))
            form = self._added.ndim, self._added.dtype
            if form != (1, added_type(about.dimension)) or _crc(checksums) != about.checksums["lists"]:
                raise damaged(self._path(_checksums(about.change)))
        self.lists = Lists.open(path, about.dimension, about.dtype, checksums)
        if (len(self.lists), self.lists.header_checksum) != (about.entries, about.checksums["header"]):
            raise damaged(path)
        if about.version == 1 and _crc(*self.lists.numbers()) != about.checksums["numbers"]:
            raise damaged(path)

    def verify(self) -> None:
        """Reads all that the index holds. Raises ValueError for a file that is damaged; version 1 shows less of it."""
        self.lists.verify()
        self.lists.present(len(self.names))
        about = self.manifest
        if self._added is not None:
            if _crc(self._added) != about.checksums["added"]:
                raise damaged(self._path(_added(about.change)))
            if self.names.checksum() != about.checksums["names"]:
                raise damaged(self._path(_names(about.names)))

    @property
    def keeps_added(self) -> bool:
        """Whether an embedding is kept as it was added: none is in version 1, or if all that were kept are removed."""
        return self._added is not None and len(self._added) > 0

    @cached_property
    def added(self) -> np.ndarray:
        """Some embeddings as they were added, see `Writer.added`; where none is kept, some of those in the lists."""
        if self._added is not None and self.keeps_added:
            return self._added
        numbers = np.sort(np.concatenate(list(self.lists.numbers())))
        numbers = numbers[drawn(numbers)]
        added = np.empty(len(numbers), added_type(self.manifest.dimension))
        added["number"], added["embedding"] = numbers, self.lists.rows(numbers)
        return added

    def writer(self) -> Writer:
        """Returns a writer of these entries and others."""
        return Writer(self.folder, self.manifest.dimension, self.manifest.dtype, self.lists, self.added)

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
            write_names(self._path(_names(change)), new_names, self.names)
        names = change if new_names else about.names
        _write(self.folder, lists, about._replace(entries=len(lists), change=change, names=names))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _array(self, name: str) -> np.ndarray:
        return open_array(self._path(name))


def create(folder: str, lists: Writer, dtype: str, dimension: int, names: Sequence[str], origin: Origin | None) -> None:
    """Writes an index into an empty folder. Raises OSError."""
    write_names(os.path.join(folder, _names(1)), names)
    _write(folder, lists, Manifest(VERSION, dimension, dtype, len(lists), 1, 1, {}, origin, {}))


@contextmanager
def changing(folder: str) -> Iterator[IndexFolder]:
    """Yields the index for a command that changes it.

    Raises:
        OSError: Another command changes it at the same time.
        ValueError: It is damaged; new checksums would hide that.
    """
    path = os.path.join(folder, MANIFEST)
    _read_manifest(path)  # for its error where there is no folder
    refuse_writable_by_others(folder)
    with locked(folder):
        try:
            index = IndexFolder(folder)
            index.verify()
            _clean(folder, index.manifest)
            yield index
        finally:
            _clean(folder, _read_manifest(path))  # of a change that failed, or was killed before


def is_index(path: str) -> bool:
    """Returns whether a path is that of an index, and not of embeddings."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def files_of(path: str) -> list[str]:
    """Returns the names of the files of an index; none where no index can be read."""
    try:
        return [MANIFEST, *_files(_read_manifest(os.path.join(path, MANIFEST)))]
    except (FileNotFoundError, ValueError):
        return []


def _lists(change: int) -> str:
    return f"lists-{change}.faiss"


def _checksums(change: int) -> str:
    return f"checksums-{change}.npy"


def _added(change: int) -> str:
    return f"added-{change}.npy"


def _names(change: int) -> str:
    return f"names-{change}"


def _files(about: Manifest) -> list[str]:
    arrays = [_checksums(about.change), _added(about.change)] if about.version > 1 else []
    return [_lists(about.change), *arrays, *(_names(about.names) + ending for ending in ENDINGS)]


def _crc(*arrays: np.ndarray) -> int:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, checksum)
    return checksum


def _write(folder: str, lists: Writer, about: Manifest) -> None:
    path = os.path.join(folder, _lists(about.change))
    about, of_lists, sizes = about._replace(version=VERSION), lists.save(path), {}
    for name, array in (_checksums(about.change), of_lists), (_added(about.change), lists.added):
        with new_file(os.path.join(folder, name)) as file:
            np.save(file, array)
    for name in _files(about):
        with open(os.path.join(folder, name), "r+b", opener=no_follow) as file:
            os.fsync(file.fileno())  # before the manifest that names it
            sizes[name] = os.fstat(file.fileno()).st_size
    header = Lists.open(path, about.dimension, about.dtype).header_checksum
    names = Names(os.path.join(folder, _names(about.names))).checksum()
    checksums = {"header": header, "lists": _crc(of_lists), "added": _crc(lists.added), "names": names}
    about = about._replace(files=sizes, checksums=checksums)
    content = {"format": FORMAT, **about._asdict()}
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
    refuse_writable_by_others(os.path.dirname(path), read_only=True)
    try:
        content = read_object(path, LARGEST)
        if content.pop("format") != FORMAT:
            raise ValueError("it describes no index")
        version = content["version"]
        if version not in CHECKED:
            raise ValueError(f"it is of version {version} of the format, this program reads up to {VERSION}")
        if version == 1:
            content["checksums"] = dict(zip(CHECKED[1], content["checksums"]))
        return _checked(content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be used ({error}): build the index again") from None


def _checked(content: dict[str, Any]) -> Manifest:
    origin = content.pop("origin")
    about = Manifest(**content, origin=origin and Origin.read(origin))
    if not isinstance(about.files, dict) or not isinstance(about.checksums, dict):
        raise ValueError("its files are invalid")
    if sorted(about.checksums) != sorted(CHECKED[about.version]):
        raise ValueError(f"it has checksums of {', '.join(about.checksums)}")
    numbers = [about.dimension, about.entries, about.change, about.names]
    numbers += [*about.checksums.values(), *about.files.values()]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a number is invalid")
    if about.dtype not in DTYPES:
        raise ValueError(f"its dtype is none of {', '.join(DTYPES)}")
    if sorted(about.files) != sorted(_files(about)):
        raise ValueError(f"it names the files {', '.join(about.files)}")
    return about
