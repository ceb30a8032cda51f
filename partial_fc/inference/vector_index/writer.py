"""Writes the lists of an index, new ones or changed ones, without holding their entries in memory.

New entries wait in files without a name, whose lists are those of the index. At the end each list is copied from the
old file and from these. A command that ends before leaves nothing behind.

Shapes: N embeddings, E embedding.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from partial_fc.utils.atomic_io import named_in_errors

from .ivf import LISTS, OF_A_LIST, Lists, decoded, empty_index, entries, load_faiss, wanted_lists

SAMPLE = LISTS * OF_A_LIST  # embeddings that centers and ranges are made from, at most
# New embeddings that are looked at, and the length that bytes may cut off one in a hundred of them: a tenth costs 0.005
# of a cosine.
LOOK, CUT = 1_000, 0.1
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

    Raises:
        ImportError: faiss is missing.
    """

    def __init__(self, folder: str, dimension: int, dtype: str, old: Lists | None = None):
        self._folder, self._dimension, self._dtype = folder, dimension, dtype
        self._old = old  # owns the first source, and the centers of the lists
        self._stored = 0 if old is None else len(old)
        self._sources = [] if old is None else [old.index.invlists]
        self._memory = empty_index(dimension, dtype, 1) if old is None else _like(old.index, dtype)
        self._dropped = np.zeros(0, bool)  # by number

    def __len__(self) -> int:
        return self._stored - int(self._dropped.sum())

    def remove(self, numbers: np.ndarray) -> None:
        """Leaves out old entries."""
        self._dropped = np.zeros(numbers.max() + 1, bool)
        self._dropped[numbers] = True

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
        outgrown = not self._memory.is_trained or wanted >= 2 * self._memory.nlist
        if outgrown or self._cuts(rows(_some(count, LOOK))):
            self._make_lists(wanted, rows(_some(count, SAMPLE)))
        for start in range(0, count, PART):
            part = np.ascontiguousarray(rows(slice(start, min(start + PART, count))), np.float32)
            self._add(part, np.arange(first + start, first + start + len(part)))
            advance(len(part))
        self._store()

    def save(self, path: str) -> int:
        """Writes all entries, in the format of faiss; returns `Lists.checksum` of the file. Raises OSError."""
        checksum = 0
        with named_in_errors(path), open(path, "wb") as file:
            file.write(self._header())
            for place in range(self._memory.nlist):
                parts = [entries(source, place) for source in self._sources]
                for codes, numbers in parts:
                    file.write(codes[self._kept(numbers)])
                for _, numbers in parts:
                    kept = numbers[self._kept(numbers)]
                    file.write(kept)
                    checksum = zlib.crc32(kept, checksum)
        return checksum

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

    def _header(self) -> bytes:
        """Returns the file up to the entries."""
        self._memory.ntotal = len(self)
        content = load_faiss().serialize_index(self._memory).tobytes()
        self._memory.ntotal = 0
        end = b"sprs" + bytes(8)  # sizes of the lists that are not empty, of which there is none
        assert content.endswith(end)
        sizes = [sum(self._size(source, place) for source in self._sources) for place in range(self._memory.nlist)]
        return content.removesuffix(end) + b"full" + np.array([len(sizes), *sizes], "<u8").tobytes()

    def _cuts(self, sample: np.ndarray) -> bool:
        """Returns whether numbers of more than a few embeddings are outside the ranges of their bytes."""
        if self._dtype != "int8":
            return False
        low, width = load_faiss().vector_to_array(self._memory.sq.trained).reshape(2, -1)
        return bool(np.quantile(np.linalg.norm(sample - sample.clip(low, low + width), axis=1), 0.99) > CUT)

    def _make_lists(self, count: int, sample: np.ndarray) -> None:
        """Makes ``count`` lists of the entries, which fit others as well, of which there is a sample."""
        before, sources, chosen = self._memory, self._sources, np.zeros(self._stored, bool)
        chosen[_some(self._stored, SAMPLE)] = True
        known, first = [], 0
        for codes, _ in _blocks(sources):
            known.append(decoded(before, codes[chosen[first : first + len(codes)]]))
            first += len(codes)
        after = empty_index(self._dimension, self._dtype, count)
        after.train(np.concatenate([*known, sample]))
        self._memory, self._sources, self._stored = after, [], 0
        for codes, numbers in _blocks(sources):
            self._add(decoded(before, codes), numbers)

    def _add(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        self._memory.add_with_ids(rows, numbers)
        if self._memory.ntotal * self._memory.code_size >= HELD:
            self._store()

    def _store(self) -> None:
        """Moves the entries in memory to a file."""
        faiss, index = load_faiss(), self._memory
        with named_in_errors(self._folder), tempfile.TemporaryFile(dir=self._folder) as file:
            faiss.write_InvertedLists(index.invlists, faiss.PyCallbackIOWriter(file.write))
            file.flush()
            reader = faiss.FileIOReader(f"/proc/self/fd/{file.fileno()}")
            source = faiss.read_InvertedLists(reader, faiss.IO_FLAG_MMAP)
        source.thisown = True  # else it is never freed
        self._sources.append(source)
        self._stored += index.ntotal
        # Others, as reset() keeps the memory.
        empty = faiss.ArrayInvertedLists(index.nlist, index.code_size)
        index.replace_invlists(empty, True)
        empty.this.disown()  # the index frees it
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


def _some(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers 0 .. count - 1, in order."""
    return np.sort(np.random.default_rng(0).choice(count, min(count, most), replace=False))
