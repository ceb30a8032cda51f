"""The embeddings of an index in lists of near ones: IVF (Sivic and Zisserman, 2003) by faiss. Entries have numbers.

A search compares its query with the centers of all lists, then with the entries of the nearest lists. In int8 each
number of an embedding is a byte between the least and the largest one of its place in a sample.

Shapes: N embeddings, E embedding, M results.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

INSTALL = "pip install faiss-cpu"
DTYPES = {"int8": 1, "float32": 4}  # bytes of a number
# By benchmarks/index.py: at most so many lists, and of so many entries; lists that a search reads.
LISTS, OF_A_LIST, EFFORT = 4096, 40, 512
SAMPLE = LISTS * OF_A_LIST  # embeddings that centers and ranges are made from, at most
MARGIN = 0.05  # of the range of a sample, on either side, for the numbers of other embeddings
# New embeddings that are looked at, and the length that bytes may cut off one in a hundred of them: a tenth costs 0.005
# of a cosine.
LOOK, CUT = 1_000, 0.1
PART = 20_000  # embeddings between two moments at which Ctrl-C is noticed

Rows = Callable[[Any], np.ndarray]  # a slice or indices of N embeddings -> embeddings (n, E) of length 1


class Places(NamedTuple):
    """The numbers of all entries in order, (N,), and the list of each and its place there."""

    numbers: np.ndarray
    lists: np.ndarray
    places: np.ndarray


class Lists:
    """Embeddings by number, in memory or mapped from a file.

    Args:
        index: of faiss.
    """

    def __init__(self, index: Any):
        self._use(index)

    @classmethod
    def new(cls, dimension: int, dtype: str) -> "Lists":
        """Returns lists without entries; ImportError without faiss."""
        return cls(_empty(dimension, dtype, 1))

    @classmethod
    def open(cls, path: str, dimension: int, dtype: str, mapped: bool) -> "Lists":
        """Reads a file written by `save`; ``mapped``: reads embeddings when a search needs them.

        Raises:
            ImportError: faiss is missing.
            ValueError: The file is damaged, or holds other embeddings; names it.
        """
        faiss = _faiss()
        with open(path, "rb") as file:  # by its number, as faiss takes no path that is not UTF-8
            try:
                index = faiss.read_index(f"/proc/self/fd/{file.fileno()}", faiss.IO_FLAG_MMAP if mapped else 0)
            except RuntimeError as error:
                raise ValueError(f"{path} is damaged: {error}") from None
        if (type(index), index.d) != (_kind(dtype), dimension):
            raise ValueError(f"{path} does not hold {dtype} of dimension {dimension}")
        if mapped:  # 32 threads that read ahead take as long as the search
            faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
        return cls(index)

    def __len__(self) -> int:
        return self._index.ntotal

    def add(self, first: int, rows: Rows, count: int, advance: Callable[[int], object]) -> None:
        """Adds ``count`` embeddings with the numbers from ``first`` on; makes new lists for all if these do not fit.

        Args:
            first: above the numbers of all entries.
            rows: see Rows.
            count: N.
            advance: called with the number of entries of each finished part.
        """
        if not count:
            return
        wanted = _wanted(len(self) + count)
        outgrown = not self._index.is_trained or wanted >= 2 * self._index.nlist
        if outgrown or self._cuts(rows(_some(count, LOOK))):
            self._make_lists(wanted, rows(_some(count, SAMPLE)))
        for start in range(0, count, PART):
            part = np.ascontiguousarray(rows(slice(start, min(start + PART, count))), np.float32)
            self._add(part, np.arange(first + start, first + start + len(part)))
            advance(len(part))

    def remove(self, numbers: np.ndarray) -> None:
        """Removes entries."""
        chosen = np.zeros(numbers.max() + 1, bool)
        chosen[numbers] = True
        bits = np.packbits(chosen, bitorder="little")
        # A plain array crashes where Horovod is loaded, whose symbols of the C++ library hide those that faiss needs.
        self._index.remove_ids(_faiss().IDSelectorBitmap(bits))
        self._use(self._index)

    def present(self, count: int) -> np.ndarray:
        """Returns which of the numbers 0 .. count - 1 are entries, (count,) bool."""
        there = np.zeros(count, bool)
        there[self._places.numbers] = True
        return there

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the embeddings of entries, (N, E) float32 of length 1."""
        pointer, reconstruct = _faiss().swig_ptr, self._index.reconstruct_from_offset
        found = np.empty((len(numbers), self._index.d), np.float32)
        order = np.searchsorted(self._places.numbers, numbers)
        for row, number in zip(found, order):
            reconstruct(int(self._places.lists[number]), int(self._places.places[number]), pointer(row))
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def nearest(self, query: np.ndarray, top: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns numbers (M,) and cosines (M,) of at most ``top`` entries near a unit ``query`` (E,), best first.

        ``exact`` compares all entries.
        """
        lists, entries = self._index.nlist, max(1, len(self))
        # More where many entries were removed, and as many as hold twice the results.
        effort = max(EFFORT * max(1, lists // _wanted(entries)), 2 * top * lists // entries)
        self._index.nprobe = lists if exact else effort
        cosines, numbers = self._index.search(query[None].astype(np.float32), min(top, entries))
        found = numbers[0] >= 0
        return numbers[0][found], cosines[0][found].clip(-1, 1)  # those of bytes are not exact

    def checksum(self) -> int:
        """Returns the CRC-32 of the numbers of the entries, in the order of the lists."""
        checksum = 0
        for numbers in self._numbers():
            checksum = zlib.crc32(numbers.tobytes(), checksum)
        return checksum

    def save(self, path: str) -> None:
        """Writes the lists; raises OSError."""
        faiss = _faiss()
        try:
            with open(path, "wb") as file:  # faiss itself only prints that the last bytes cannot be written
                faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))
        except OSError as error:
            raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from None

    def _use(self, index: Any) -> None:
        self._index = index
        index.parallel_mode = 1  # the threads share the lists of a query
        self.__dict__.pop("_places", None)

    def _add(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        self._index.add_with_ids(rows, numbers)
        self._use(self._index)

    def _cuts(self, sample: np.ndarray) -> bool:
        """Returns whether numbers of more than a few embeddings are outside the ranges of their bytes."""
        if self._index.code_size != self._index.d:
            return False
        low, width = _faiss().vector_to_array(self._index.sq.trained).reshape(2, -1)
        return bool(np.quantile(np.linalg.norm(sample - sample.clip(low, low + width), axis=1), 0.99) > CUT)

    def _make_lists(self, count: int, sample: np.ndarray) -> None:
        """Makes ``count`` lists of the entries, which fit others as well, of which there is a sample."""
        old, numbers = Lists(self._index), self._places.numbers
        index = _empty(self._index.d, "int8" if self._index.code_size == self._index.d else "float32", count)
        index.train(np.concatenate([old.rows(numbers[_some(len(numbers), SAMPLE)]), sample]))
        self._use(index)
        for start in range(0, len(numbers), PART):
            part = numbers[start : start + PART]
            self._add(old.rows(part), part)

    def _numbers(self) -> Iterator[np.ndarray]:
        lists, view = self._index.invlists, _faiss().rev_swig_ptr
        for place in range(self._index.nlist):
            size = lists.list_size(place)
            yield view(lists.get_ids(place), size).copy() if size else np.empty(0, np.int64)

    @cached_property
    def _places(self) -> Places:
        numbers = list(self._numbers())
        sizes = [len(part) for part in numbers]
        lists = np.repeat(np.arange(len(sizes)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        joined = np.concatenate(numbers)
        order = joined.argsort()
        return Places(joined[order], lists[order], places[order])


def header_checksum(path: str, entries: int, dimension: int, dtype: str) -> int:
    """Returns the CRC-32 of a file of `Lists.save` up to the entries: faiss would follow damaged sizes out of it."""
    rest = entries * (dimension * DTYPES[dtype] + np.dtype(np.int64).itemsize)  # of bytes, and numbers
    with open(path, "rb") as file:
        return zlib.crc32(file.read(max(0, os.path.getsize(path) - rest)))


def _wanted(entries: int) -> int:
    """The number of lists for so many entries."""
    return min(LISTS, max(1, entries // OF_A_LIST))


def _some(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers 0 .. count - 1, in order."""
    return np.sort(np.random.default_rng(0).choice(count, min(count, most), replace=False))


def _empty(dimension: int, dtype: str, lists: int) -> Any:
    """An index of faiss that is to be trained."""
    faiss, kind = _faiss(), _kind(dtype)
    about = faiss.IndexFlatIP(dimension), dimension, lists
    if dtype == "float32":
        index = kind(*about, faiss.METRIC_INNER_PRODUCT)
    else:
        index = kind(*about, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False)
        index.sq.rangestat_arg = MARGIN
    index.cp.min_points_per_centroid = 1  # else it warns of one list for few entries
    return index


def _kind(dtype: str) -> type:
    return {"int8": _faiss().IndexIVFScalarQuantizer, "float32": _faiss().IndexIVFFlat}[dtype]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"an index needs the package faiss-cpu ({error}): {INSTALL}") from None
    return faiss
