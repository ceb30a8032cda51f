"""Writes the lists of an index, new ones or changed ones, without holding their entries in memory.

New entries wait in files without a name, whose lists are those of the index. At the end each list is copied from the
old file and from these. A command that ends before leaves nothing behind.

Shapes: N embeddings, E embedding.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from partial_fc.utils.atomic_io import named_in_errors, new_file
from partial_fc.utils.hashing import mix

from .ivf import (
    CUT,
    LISTS,
    OF_A_LIST,
    Lists,
    decoded,
    empty_index,
    entries,
    header_of,
    list_checksum,
    load_faiss,
    mapped_lists,
    replace_lists,
    wanted_lists,
)

SAMPLE = LISTS * OF_A_LIST  # embeddings that centers are made from, at most
ADDED = 1_000  # embeddings that are kept as they were added, at most
PART = 20_000  # embeddings between two moments at which Ctrl-C is noticed
HELD = 1 << 29  # bytes of new entries in memory; faiss takes up to twice as many

Rows = Callable[[Any], np.ndarray]  # a slice or indices of N embeddings -> embeddings (n, E) of length 1


class Writer:
    """Lists that are to be written.

    Args:
        folder: where new entries wait, on the disk of the index.
        dimension: E.
        dtype: a name of DTYPES.
        old: lists whose entries are to be kept.
        added: some of their embeddings, see ``added`` below.

    Attributes:
        added: (K,) of `added_type`, some of all embeddings as they were added, with which `check` compares the lists.

    Raises:
        ImportError: faiss is missing.
    """

    def __init__(
        self, folder: str, dimension: int, dtype: str, old: Lists | None = None, added: np.ndarray | None = None
    ):
        self._folder, self._dimension, self._dtype = folder, dimension, dtype
        self._old = old  # owns the first source, and the centers of the lists
        self._stored = 0 if old is None else len(old)
        self._sources = [] if old is None else [old.index.invlists]
        self._memory = empty_index(dimension, dtype, 1) if old is None else _like(old.index, dtype)
        self._dropped = np.zeros(0, bool)  # by number
        self.added = np.empty(0, added_type(dimension)) if added is None else added

    def __len__(self) -> int:
        return self._stored - int(self._dropped.sum())

    def remove(self, numbers: np.ndarray) -> None:
        """Leaves out old entries."""
        self._dropped = np.zeros(numbers.max() + 1, bool)
        self._dropped[numbers] = True
        self.added = self.added[self._kept(self.added["number"])]

    def add(self, first: int, rows: Rows, count: int, advance: Callable[[int], object]) -> None:
        """Adds ``count`` embeddings with the numbers from ``first`` on; makes new lists for all if these do not fit.

        Args:
            first: above the numbers of all entries.
            rows: see Rows.
            count: N.
            advance: called with the number of entries of each finished part.

        Raises:
            OSError: The disk is full.
        """
        if not count:
            return
        wanted = wanted_lists(len(self) + count)
        ranges, cut = self._survey(rows, count)
        if not self._memory.is_trained or wanted >= 2 * self._memory.nlist or cut > CUT:
            self._make_lists(wanted, rows(_some(count, SAMPLE)), ranges)
        for start, part in _parts(rows, count):
            self._add(part, np.arange(first + start, first + start + len(part)))
            advance(len(part))
        self._store()
        self._keep_some(first, rows, count)

    def save(self, path: str) -> np.ndarray:
        """Writes all entries, in the format of faiss; returns `list_checksum` of each list, uint32. Raises OSError."""
        checksums = np.empty(self._memory.nlist, np.uint32)
        with named_in_errors(path), new_file(path) as file:
            sources, places = self._sources, range(self._memory.nlist)
            sizes = [sum(self._size(source, place) for source in sources) for place in places]
            file.write(header_of(self._memory, self._dtype, sizes).tobytes())
            for place in range(self._memory.nlist):
                parts = []
                for codes, numbers in (entries(source, place) for source in self._sources):
                    kept = self._kept(numbers)
                    parts.append((codes[kept], numbers[kept]))
                for column in zip(*parts):
                    file.writelines(column)
                checksums[place] = list_checksum(parts)
        return checksums

    def _kept(self, numbers: np.ndarray) -> np.ndarray:
        """Returns which of the entries with these numbers are not removed, (n,) bool."""
        kept = np.ones(len(numbers), bool)
        old = numbers < len(self._dropped)
        kept[old] = ~self._dropped[numbers[old]]
        return kept

    def _size(self, source: Any, place: int) -> int:
        """Returns the number of entries of a list that are not removed."""
        if not self._dropped.any():
            return source.list_size(place)  # reads none of them
        return int(self._kept(entries(source, place)[1]).sum())

    def _keep_some(self, first: int, rows: Rows, count: int) -> None:
        """Draws again what is kept of all embeddings as they were added."""
        some = drawn(np.arange(first, first + count))
        new = np.empty(len(some), self.added.dtype)
        new["number"], new["embedding"] = first + some, rows(some)
        both = np.concatenate([self.added, new])
        self.added = both[drawn(both["number"])]

    def _survey(self, rows: Rows, count: int) -> tuple[np.ndarray, float]:
        """Returns the ranges (2, E) of the numbers of new embeddings, and the most that bytes would cut off of one.

        All are looked at: a single one outside the ranges of the bytes would become another embedding.
        """
        low, high, most = np.full(self._dimension, np.inf), np.full(self._dimension, -np.inf), 0.0
        if self._dtype == "int8":
            held = _byte_ranges(self._memory) if self._memory.is_trained else None
            for _, part in _parts(rows, count):
                low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
                if held is not None:
                    cut = part.clip(*held)
                    cut -= part
                    most = max(most, float(np.einsum("ne,ne->n", cut, cut).max()) ** 0.5)
        return np.stack([low, high]), most

    def _make_lists(self, count: int, sample: np.ndarray, ranges: np.ndarray) -> None:
        """Makes ``count`` lists of the entries, which fit others as well: these have ``ranges``, see `_survey`.

        ``sample`` is of the others. Ranges of bytes never shrink, as not all entries are looked at.
        """
        before, sources, chosen = self._memory, self._sources, np.zeros(self._stored, bool)
        chosen[_some(self._stored, SAMPLE)] = True
        known, first = [], 0
        for codes, _ in _blocks(sources):
            known.append(decoded(before, codes[chosen[first : first + len(codes)]]))
            first += len(codes)
        after = empty_index(self._dimension, self._dtype, count)
        after.train(np.concatenate([*known, sample]))
        if self._dtype == "int8":
            every = [_byte_ranges(after), ranges, *([_byte_ranges(before)] if before.is_trained else [])]
            lowest, highest = zip(*every)
            low, high = np.min(lowest, axis=0), np.max(highest, axis=0)
            load_faiss().copy_array_to_vector(np.concatenate([low, high - low]).astype(np.float32), after.sq.trained)
        self._memory, self._sources, self._stored = after, [], 0
        for codes, numbers in _blocks(sources):
            self._add(decoded(before, codes), numbers)

    def _add(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        self._memory.add_with_ids(rows, numbers)
        if self._memory.ntotal * self._memory.code_size >= HELD:
            self._store()

    def _store(self) -> None:
        """Moves the entries in memory to a file."""
        index = self._memory
        if not index.ntotal:
            return
        sizes = [index.invlists.list_size(place) for place in range(index.nlist)]
        with named_in_errors(self._folder), tempfile.TemporaryFile(dir=self._folder) as file:
            for place in range(index.nlist):
                file.writelines(array.data for array in entries(index.invlists, place))
            file.flush()
            self._sources.append(mapped_lists(file, 0, np.array(sizes, np.uint64), index.code_size))
        self._stored += index.ntotal
        # Others, as reset() keeps the memory.
        replace_lists(index, load_faiss().ArrayInvertedLists(index.nlist, index.code_size))
        index.ntotal = 0


def _blocks(sources: list[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the codes (n, bytes) uint8 and the numbers (n,) of all entries, in the order of the files."""
    for source in sources:
        for place in range(source.nlist):
            yield entries(source, place)


def _like(old: Any, dtype: str) -> Any:
    """Returns an index of faiss without entries, whose lists are those of ``old``, which must outlive it."""
    index = empty_index(old.d, dtype, old.nlist, old.quantizer)
    if dtype == "int8":
        index.sq = old.sq
    index.is_trained = True
    return index


def added_type(dimension: int) -> np.dtype:
    """The type of `Writer.added`: the number of an entry, and its embedding."""
    return np.dtype([("number", "<i8"), ("embedding", "<f4", (dimension,))])


def drawn(numbers: np.ndarray) -> np.ndarray:
    """The positions of at most ADDED entries, in order: whatever is added or removed later, the same are drawn."""
    return np.sort(np.argsort(mix(numbers.astype(np.uint64)), kind="stable")[:ADDED])


def _byte_ranges(index: Any) -> np.ndarray:
    """Returns the least and the largest number (2, E) that the bytes of each place of an embedding can hold."""
    return np.cumsum(load_faiss().vector_to_array(index.sq.trained).reshape(2, -1), axis=0)


def _parts(rows: Rows, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the first row of each part, and its embeddings."""
    for start in range(0, count, PART):
        yield start, np.ascontiguousarray(rows(slice(start, min(start + PART, count))), np.float32)


def _some(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers 0 .. count - 1, in order."""
    return np.sort(np.random.default_rng(0).choice(count, min(count, most), replace=False))
