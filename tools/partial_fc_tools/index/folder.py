"""The folder of an index: manifest.json, the lists with their checksums, the names, and a sample of the embeddings.

Every change writes new files beside the current ones, then the manifest that names them, then removes the old files. A
change that is interrupted leaves the old index, and a search that has it open continues with the old files.
"""

import json
import os
import re
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

from .ivf import DTYPES, Lists, checksum, damaged
from .names import ENDINGS, Names, write_names
from .writer import Writer, added_dtype, sample_positions

MANIFEST = "manifest.json"
FORMAT, VERSION = "partial_fc index", 2
# CRC-32 values in the manifest, by format version. Those of version 1 covered the header and the IDs of all entries.
CHECKED = {1: ("header", "ids"), 2: ("header", "lists", "added", "names")}
FILES = {"lists": "lists-{}.faiss", "checksums": "checksums-{}.npy", "added": "added-{}.npy", "names": "names-{}"}
LARGEST = 1 << 16  # maximum size of a manifest in bytes
WRITTEN = re.compile(r"lists-\d+\.faiss|(?:checksums|added)-\d+\.npy|names-\d+\.(?:txt|npy)")


class Manifest(NamedTuple):
    """Content of the manifest.

    Attributes:
        version: format version.
        dimension: size of the embeddings.
        dtype: a key of DTYPES.
        entries: number of entries.
        change: number of the last change, part of every file name except for the two files of names.
        names: number of the change that wrote the names.
        files: size of each file in bytes.
        origin: what the embeddings were computed with; None if unknown.
        checksums: CRC-32 values, see CHECKED.
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

    def file(self, kind: str) -> str:
        """Returns the name of a file, by its key in FILES; for "names" without the ending."""
        return FILES[kind].format(self.names if kind == "names" else self.change)

    @property
    def file_names(self) -> list[str]:
        """The names of all files."""
        kinds = ["lists", "checksums", "added"] if self.version > 1 else ["lists"]
        return [*map(self.file, kinds), *(self.file("names") + ending for ending in ENDINGS)]


class IndexFolder:
    """An index on disk. All of its files stay open.

    Args:
        folder: path of the index.

    Attributes:
        manifest: content of the manifest.
        names: names of the entries by ID, including removed entries.
        lists: the embeddings.

    Raises:
        ImportError: faiss is missing.
        OSError: There is no index, a file cannot be read, or all users can replace files in the folder.
        ValueError: A file is damaged or belongs to another version.
    """

    names: Names
    lists: Lists
    _added: np.ndarray | None  # of `added_dtype`; None in version 1

    def __init__(self, folder: str):
        self.folder = folder
        while True:
            self.manifest = _read_manifest(self._path(MANIFEST))
            try:
                return self._open()
            except (OSError, ValueError):
                if _read_manifest(self._path(MANIFEST)) == self.manifest:
                    raise
                # A change has replaced the files since the manifest was read, so open the new ones.

    def _open(self) -> None:
        manifest, self._added, checksums = self.manifest, None, None
        for name, size in manifest.files.items():
            path = self._path(name)
            with open_regular(path, self.folder) as file:
                actual_size = os.fstat(file.fileno()).st_size
            if actual_size != size:
                raise ValueError(f"{path} is damaged: it has {actual_size} bytes instead of {size}")
        self.names = Names(self._path(manifest.file("names")))
        path = self._path(manifest.file("lists"))
        if manifest.version > 1:
            self._added = open_array(self._path(manifest.file("added")))
            if (self._added.ndim, self._added.dtype) != (1, added_dtype(manifest.dimension)):
                raise damaged(self._path(manifest.file("added")))
            checksums = open_array(self._path(manifest.file("checksums")))
            if checksum(checksums) != manifest.checksums["lists"]:
                raise damaged(self._path(manifest.file("checksums")))
        self.lists = Lists(path, manifest.dimension, manifest.dtype, checksums)
        if (len(self.lists), self.lists.header_checksum) != (manifest.entries, manifest.checksums["header"]):
            raise damaged(path)
        if manifest.version == 1 and checksum(*self.lists.ids()) != manifest.checksums["ids"]:
            raise damaged(path)

    def verify(self) -> None:
        """Reads the whole index; raises ValueError for a damaged file. In version 1, embeddings have no checksums."""
        self.lists.verify()
        self.lists.present(len(self.names))
        manifest = self.manifest
        if self._added is not None:
            if checksum(self._added) != manifest.checksums["added"]:
                raise damaged(self._path(manifest.file("added")))
            if self.names.checksum() != manifest.checksums["names"]:
                raise damaged(self._path(manifest.file("names")))

    @property
    def keeps_added(self) -> bool:
        """Whether embeddings are kept as they were added: not in version 1, or if all kept ones have been removed."""
        return self._added is not None and len(self._added) > 0

    @cached_property
    def added(self) -> np.ndarray:
        """Sample of the embeddings as they were added, see `Writer.added`; without `keeps_added`, from the lists."""
        if self._added is not None and self.keeps_added:
            return self._added
        ids = np.sort(np.concatenate(list(self.lists.ids())))
        ids = ids[sample_positions(ids)]
        added = np.empty(len(ids), added_dtype(self.manifest.dimension))
        added["number"], added["embedding"] = ids, self.lists.rows(ids)
        return added

    def writer(self) -> Writer:
        """Returns a writer that starts with the entries of this index."""
        return Writer(self.folder, self.manifest.dimension, self.manifest.dtype, self.lists, self.added)

    def present(self) -> tuple[np.ndarray, list[str]]:
        """Returns the IDs of the entries in ascending order, and their names."""
        is_present = self.lists.present(len(self.names))
        return np.flatnonzero(is_present), [name for name, present in zip(self.names, is_present) if present]

    def check(self, source: str, dimension: int, origin: Origin | None) -> None:
        """Raises ValueError if the embeddings of ``source``, a path, cannot be compared with those of the index."""
        if dimension != self.manifest.dimension:
            raise ValueError(
                f"{source} has embeddings of dimension {dimension}, {self.folder} of dimension "
                f"{self.manifest.dimension}: use embeddings of the same model"
            )
        if origin and self.manifest.origin:
            origin.check(source, self.manifest.origin, self.folder)

    def write(self, lists: Writer, new_names: Sequence[str] = ()) -> None:
        """Replaces the lists and appends names. Raises OSError."""
        manifest = self.manifest._replace(entries=len(lists), change=self.manifest.change + 1)
        if new_names:
            manifest = manifest._replace(names=manifest.change)
            write_names(self._path(manifest.file("names")), new_names, self.names)
        _write(self.folder, lists, manifest)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def create(folder: str, lists: Writer, dtype: str, dimension: int, names: Sequence[str], origin: Origin | None) -> None:
    """Writes an index into an empty folder. Raises OSError."""
    manifest = Manifest(VERSION, dimension, dtype, len(lists), 1, 1, {}, origin, {})
    write_names(os.path.join(folder, manifest.file("names")), names)
    _write(folder, lists, manifest)


@contextmanager
def changing(folder: str) -> Iterator[IndexFolder]:
    """Locks an index and yields it for a change.

    Raises:
        OSError: Another command is changing it.
        ValueError: It is damaged; new checksums would hide that.
    """
    path = os.path.join(folder, MANIFEST)
    _read_manifest(path)  # reports a missing folder before `locked` does
    refuse_writable_by_others(folder)
    with locked(folder):
        try:
            index = IndexFolder(folder)
            index.verify()
            _remove_unused(folder, index.manifest)  # from a change that was killed
            yield index
        finally:
            _remove_unused(folder, _read_manifest(path))


def is_index(path: str) -> bool:
    """Returns whether a path is the folder of an index, rather than the path of embeddings."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def files_of(path: str) -> list[str]:
    """Returns the names of the files of an index; none if no index can be read."""
    try:
        return [MANIFEST, *_read_manifest(os.path.join(path, MANIFEST)).file_names]
    except (FileNotFoundError, ValueError):
        return []


def _write(folder: str, lists: Writer, manifest: Manifest) -> None:
    path = os.path.join(folder, manifest.file("lists"))
    manifest, list_checksums, sizes = manifest._replace(version=VERSION), lists.save(path), {}
    for name, array in (manifest.file("checksums"), list_checksums), (manifest.file("added"), lists.added):
        with new_file(os.path.join(folder, name)) as file:
            np.save(file, array)
    for name in manifest.file_names:
        with open(os.path.join(folder, name), "r+b", opener=no_follow) as file:
            os.fsync(file.fileno())  # before the manifest names it, or a crash would leave an index without it
            sizes[name] = os.fstat(file.fileno()).st_size
    checksums = {
        "header": Lists(path, manifest.dimension, manifest.dtype).header_checksum,
        "lists": checksum(list_checksums),
        "added": checksum(lists.added),
        "names": Names(os.path.join(folder, manifest.file("names"))).checksum(),
    }
    content = {"format": FORMAT, **manifest._replace(files=sizes, checksums=checksums)._asdict()}
    content["origin"] = manifest.origin and manifest.origin._asdict()
    sync_folder(folder)
    replace_file(os.path.join(folder, MANIFEST), [json.dumps(content, indent=1).encode()])


def _remove_unused(folder: str, manifest: Manifest) -> None:
    """Removes files of an index that its manifest does not name; files of the user stay."""
    for name in set(os.listdir(folder)) - {MANIFEST, *manifest.file_names}:
        if WRITTEN.fullmatch(name):
            with suppress(OSError):
                os.remove(os.path.join(folder, name))


def _read_manifest(path: str) -> Manifest:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist: give a folder that partial-fc index build wrote")
    refuse_writable_by_others(os.path.dirname(path), read_only=True)
    try:
        content = read_object(path, LARGEST)
        if content.pop("format") != FORMAT:
            raise ValueError("it does not describe an index")
        version = content["version"]
        if version not in CHECKED:
            raise ValueError(f"it has version {version} of the format, this program reads versions up to {VERSION}")
        if version == 1:
            content["checksums"] = dict(zip(CHECKED[1], content["checksums"]))
        return _validated(content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be used ({error}): build the index again") from None


def _validated(content: dict[str, Any]) -> Manifest:
    origin = content.pop("origin")
    manifest = Manifest(**content, origin=origin and Origin.read(origin))
    if not isinstance(manifest.files, dict) or not isinstance(manifest.checksums, dict):
        raise ValueError("its files are invalid")
    if sorted(manifest.checksums) != sorted(CHECKED[manifest.version]):
        raise ValueError(f"it has checksums of {', '.join(manifest.checksums)}")
    integers = [manifest.dimension, manifest.entries, manifest.change, manifest.names]
    integers += [*manifest.checksums.values(), *manifest.files.values()]
    if not all(type(integer) is int and integer >= 0 for integer in integers):
        raise ValueError("a number is invalid")
    if manifest.dtype not in DTYPES:
        raise ValueError(f"its dtype is none of {', '.join(DTYPES)}")
    if sorted(manifest.files) != sorted(manifest.file_names):
        raise ValueError(f"it names the files {', '.join(manifest.files)}")
    return manifest
