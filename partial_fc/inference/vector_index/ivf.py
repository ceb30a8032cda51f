"""The embeddings of an index in lists of near ones: IVF (Sivic and Zisserman, 2003) by faiss. Entries have numbers.

A search compares its query with the centers of all lists, then with the entries of the nearest lists. In int8 each
number of an embedding is a byte between the least and the largest one of its place in a sample.

Shapes: N embeddings, E embedding, M results.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

INSTALL = "pip install faiss-cpu"
DTYPES = {"int8": 1, "float32": 4}  # bytes of a number
# By benchmarks/index.py: at most so many lists, and of so many entries; lists that a search reads.
LISTS, OF_A_LIST, EFFORT = 4096, 40, 512
MARGIN = 0.05  # of the range of a sample, on either side, for the numbers of other embeddings
CUT = 0.1  # length that bytes may cut off an embedding, which costs 0.005 of a cosine
LONGEST = {"int8": 1 + CUT, "float32": 1.01}  # no cosine is above the length of what is stored


class Places(NamedTuple):
    """The numbers of all entries in order, (N,), and the list of each and its place there."""

    numbers: np.ndarray
    lists: np.ndarray
    places: np.ndarray


class Lists:
    """Embeddings by number, which are read when a search needs them.

    Args:
        index: of faiss.
        path: of its file, for errors.
        dtype: a name of DTYPES.
        checksums: those of `Writer.save`; None if an earlier version wrote the file, which stored none.
    """

    def __init__(self, index: Any, path: str, dtype: str, checksums: np.ndarray | None):
        self.index, self._path, self._longest, self._checksums = index, path, LONGEST[dtype], checksums
        self._checked = np.zeros(index.nlist, bool)
        index.parallel_mode = 1  # the threads share the lists of a query

    @classmethod
    def open(cls, path: str, dimension: int, dtype: str, checksums: np.ndarray | None = None) -> "Lists":
        """Maps a file written by `Writer.save`, which returned the ``checksums``.

        Raises:
            ImportError: faiss is missing.
            ValueError: The file is damaged, or holds other embeddings; names it.
        """
        faiss = load_faiss()
        with open(path, "rb") as file:  # by its number, as faiss takes no path that is not UTF-8
            try:
                index = faiss.read_index(f"/proc/self/fd/{file.fileno()}", faiss.IO_FLAG_MMAP)
            except RuntimeError as error:
                raise ValueError(f"{path} is damaged: {error}") from None
        if (type(index), index.d) != (_kind(dtype), dimension):
            raise ValueError(f"{path} does not hold {dtype} of dimension {dimension}")
        if checksums is not None and checksums.shape != (index.nlist,):
            raise damaged(path)
        # 32 threads that read ahead take as long as the search.
        faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
        return cls(index, path, dtype, checksums)

    def __len__(self) -> int:
        return self.index.ntotal

    def present(self, count: int) -> np.ndarray:
        """Returns which of the numbers 0 .. count - 1 are entries, (count,) bool."""
        there = np.zeros(count, bool)
        there[self._places.numbers] = True
        return there

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the embeddings of entries, (N, E) float32 of length 1."""
        order = np.searchsorted(self._places.numbers, numbers)
        codes = np.empty((len(numbers), self.index.code_size), np.uint8)
        for row, (place, inside) in enumerate(zip(self._places.lists[order], self._places.places[order])):
            codes[row] = entries(self.index.invlists, int(place))[0][inside]
        return decoded(self.index, codes)

    def nearest(self, query: np.ndarray, top: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns numbers (M,) and cosines (M,) of at most ``top`` entries near a unit ``query`` (E,), best first.

        ``exact`` compares all entries.

        Raises:
            ValueError: A list that a result is in is damaged: its checksum is another, or a cosine clearly above 1.
        """
        lists, entries = self.index.nlist, max(1, len(self))
        # More where many entries were removed, and as many as hold twice the results.
        effort = max(EFFORT * max(1, lists // wanted_lists(entries)), 2 * top * lists // entries)
        self.index.nprobe = lists if exact else effort
        results = self.index.search_and_return_codes(query[None], min(top, entries), include_listnos=True)
        found = results[1][0] >= 0
        cosines, numbers, codes = (each[0][found] for each in results)
        # A code begins with the number of its list. To check all lists that a search reads would take as long as it.
        for place in {bytes(code[: self.index.coarse_code_size()]) for code in codes}:
            self._check(int.from_bytes(place, "little"))
        if not (np.abs(cosines) <= self._longest).all():
            raise damaged(self._path)
        return numbers, cosines.clip(-1, 1)  # those of bytes are not exact

    def verify(self) -> None:
        """Reads all entries. Raises ValueError if a checksum is another than when they were written."""
        for place in range(self.index.nlist):
            self._check(place)

    def _check(self, place: int) -> None:
        if self._checksums is not None and not self._checked[place]:
            if list_checksum([entries(self.index.invlists, place)]) != self._checksums[place]:
                raise damaged(self._path)
            self._checked[place] = True

    def numbers(self) -> Iterator[np.ndarray]:
        """Yields the numbers of each list."""
        for place in range(self.index.nlist):
            yield entries(self.index.invlists, place)[1]

    @cached_property
    def _places(self) -> Places:
        numbers = list(self.numbers())
        sizes = [len(part) for part in numbers]
        lists = np.repeat(np.arange(len(sizes)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        joined = np.concatenate(numbers)
        order = joined.argsort()
        return Places(joined[order], lists[order], places[order])


def list_checksum(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Returns the CRC-32 of a list whose codes and numbers are those of all parts."""
    checksum = 0
    for column in zip(*parts):
        for array in column:
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def damaged(path: str) -> ValueError:
    """Returns the error of a file whose content is another than was written."""
    return ValueError(f"{path} is damaged: its checksums are not those of its index; build the index again")


def entries(lists: Any, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes (n, bytes) uint8 and the numbers (n,) int64 of a list of faiss, which may not be written."""
    size, view = lists.list_size(place), load_faiss().rev_swig_ptr
    if not size:  # a null pointer
        return np.empty((0, lists.code_size), np.uint8), np.empty(0, np.int64)
    codes = view(lists.get_codes(place), size * lists.code_size).reshape(size, -1)
    return codes, view(lists.get_ids(place), size)


def decoded(index: Any, codes: np.ndarray) -> np.ndarray:
    """Returns the embeddings of codes (N, bytes) uint8 of an index of faiss, (N, E) float32 of length 1."""
    rows = index.sq.decode(codes) if index.code_size == index.d else codes.view(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def header_checksum(path: str, entries: int, dimension: int, dtype: str) -> int:
    """Returns the CRC-32 of a file of `Writer.save` up to the entries: faiss would follow damaged sizes out of it."""
    rest = entries * (dimension * DTYPES[dtype] + np.dtype(np.int64).itemsize)  # of bytes, and numbers
    with open(path, "rb") as file:
        return zlib.crc32(file.read(max(0, os.path.getsize(path) - rest)))


def wanted_lists(entries: int) -> int:
    """The number of lists for so many entries."""
    return min(LISTS, max(1, entries // OF_A_LIST))


def empty_index(dimension: int, dtype: str, lists: int, quantizer: Any = None) -> Any:
    """Returns an index of faiss without entries, which is to be trained; ImportError without faiss."""
    faiss, kind = load_faiss(), _kind(dtype)
    about = quantizer or faiss.IndexFlatIP(dimension), dimension, lists
    if dtype == "float32":
        index = kind(*about, faiss.METRIC_INNER_PRODUCT)
    else:
        index = kind(*about, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False)
        index.sq.rangestat_arg = MARGIN
    index.cp.min_points_per_centroid = 1  # else it warns of one list for few entries
    return index


def _kind(dtype: str) -> type:
    return {"int8": load_faiss().IndexIVFScalarQuantizer, "float32": load_faiss().IndexIVFFlat}[dtype]


def load_faiss() -> Any:
    """Returns the module; ImportError says what to install."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"an index needs the package faiss-cpu ({error}): {INSTALL}") from None
    return faiss
