"""The embeddings of an index in lists of near ones: IVF (Sivic and Zisserman, 2003) by faiss. Entries have numbers.

A search compares its query with the centers of all lists, then with the entries of the nearest lists. In int8 each
number of an embedding is a byte between the least and the largest one of its place in a sample.

Shapes: N embeddings, E embedding, M results.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from partial_fc.utils.regular_files import open_regular

INSTALL = "pip install faiss-cpu"
DTYPES = {"int8": 1, "float32": 4}  # bytes of a number
# By benchmarks/index.py: at most so many lists, and of so many entries; lists that a search reads.
LISTS, OF_A_LIST, EFFORT = 4096, 40, 512
MARGIN = 0.05  # of the range of a sample, on either side, for the numbers of other embeddings
CUT = 0.1  # length that bytes may cut off an embedding, which costs 0.005 of a cosine
LONGEST = {"int8": 1 + CUT, "float32": 1.01}  # no cosine is above the length of what is stored
LARGEST_HEADER = 1 << 28  # bytes; 4096 lists of dimension 512 need 8 MB
# How faiss writes the beginning of an index, for the lists and for the centers: the fields that all our kinds have.
_INDEX = [("kind", "S4"), ("dimension", "<i4"), ("entries", "<i8"), ("unused", "<i8", 2), ("trained", "u1")]
_INDEX += [("metric", "<i4")]
_KINDS = {"int8": b"IwSq", "float32": b"IwFl"}


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

    Attributes:
        header_checksum: CRC-32 of the file up to the entries.
    """

    def __init__(self, index: Any, path: str, dtype: str, checksums: np.ndarray | None, header_checksum: int):
        self.index, self._path, self._longest, self._checksums = index, path, LONGEST[dtype], checksums
        self.header_checksum = header_checksum
        self._checked = np.zeros(index.nlist, bool)
        index.parallel_mode = 1  # the threads share the lists of a query

    @classmethod
    def open(cls, path: str, dimension: int, dtype: str, checksums: np.ndarray | None = None) -> "Lists":
        """Maps a file written by `Writer.save`, which returned the ``checksums``.

        Raises:
            ImportError: faiss is missing.
            ValueError: The file is damaged, or holds other embeddings; names it.
        """
        with open_regular(path) as file:
            header, index = _read_header(file, path, dimension, dtype)
            if checksums is not None and checksums.shape != (index.nlist,):
                raise damaged(path)
            replace_lists(index, mapped_lists(file, header.nbytes, header["sizes"], index.code_size))
        return cls(index, path, dtype, checksums, zlib.crc32(header.tobytes()))

    def __len__(self) -> int:
        return self.index.ntotal

    def present(self, count: int) -> np.ndarray:
        """Returns which of the numbers 0 .. count - 1 are entries, (count,) bool; ValueError if there are others."""
        there, numbers = np.zeros(count, bool), self._places.numbers
        if len(numbers) and numbers[-1] >= count:
            raise ValueError(f"{self._path} is damaged: entry {numbers[-1]} has no name; build the index again")
        there[numbers] = True
        return there

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the embeddings of entries, (N, E) float32 of length 1; ValueError if there is no such entry."""
        known = self._places.numbers
        order = np.searchsorted(known, numbers)
        if not np.array_equal(known[order[order < len(known)]], numbers):
            raise ValueError(f"{self._path} is damaged: entries are missing; build the index again")
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
        parts = list(self.numbers())
        sizes = [len(part) for part in parts]
        lists = np.repeat(np.arange(len(sizes)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        joined = np.concatenate(parts)
        order = joined.argsort()
        numbers = joined[order]
        if len(numbers) and (numbers[0] < 0 or (numbers[1:] == numbers[:-1]).any()):
            raise ValueError(f"{self._path} is damaged: entries have equal or negative numbers; build the index again")
        return Places(numbers, lists[order], places[order])


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


def _layout(dimension: int, dtype: str, lists: int) -> np.dtype:
    """The type of a file up to the entries: what faiss writes for such an index whose lists are "full".

    The entries follow list by list, first the codes (n, bytes) uint8, then the numbers (n,) int64.
    """
    fields: list[tuple] = [("index", _INDEX), ("lists", "<u8"), ("probes", "<u8"), ("quantizer", _INDEX)]
    fields += [("floats", "<u8"), ("centers", "<f4", (lists, dimension)), ("map", "u1"), ("mapped", "<u8")]
    if dtype == "int8":
        fields += [("type", "<i4"), ("range", "<i4"), ("margin", "<f4"), ("dimension", "<u8"), ("bytes", "<u8")]
        fields += [("bounds", "<u8"), ("ranges", "<f4", (2, dimension)), ("code", "<u8"), ("residual", "u1")]
    fields += [("end", "S4"), ("end_lists", "<u8"), ("end_code", "<u8"), ("form", "S4"), ("count", "<u8")]
    return np.dtype([*fields, ("sizes", "<u8", (lists,))])


def header_of(index: Any, dtype: str, sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the file of an index of faiss up to the entries, a scalar of `_layout`; ``sizes`` are those of lists."""
    faiss, lists, code = load_faiss(), index.nlist, index.code_size
    header = np.zeros((), _layout(index.d, dtype, lists))
    unused = [1 << 20] * 2  # as faiss writes them
    header["index"] = (_KINDS[dtype], index.d, int(np.sum(sizes)), unused, 1, faiss.METRIC_INNER_PRODUCT)
    header["quantizer"] = (b"IxFI", index.d, lists, unused, 1, faiss.METRIC_INNER_PRODUCT)
    header["lists"] = header["end_lists"] = header["count"] = lists
    header["probes"], header["floats"], header["end_code"] = 1, lists * index.d, code
    header["centers"] = index.quantizer.reconstruct_n(0, lists)
    header["end"], header["form"], header["sizes"] = b"ilar", b"full", sizes
    if dtype == "int8":
        header["type"], header["margin"] = faiss.ScalarQuantizer.QT_8bit, MARGIN
        header["dimension"] = header["bytes"] = header["code"] = index.d
        header["bounds"], header["ranges"] = 2 * index.d, faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    return header


def _read_header(file: BinaryIO, path: str, dimension: int, dtype: str) -> tuple[np.ndarray, Any]:
    """Returns a file up to the entries, a scalar of `_layout`, and its index of faiss, whose lists are empty.

    faiss itself would follow sizes and kinds that others wrote out of the file. Here the header must be, byte for
    byte, what `header_of` makes of its centers, ranges and sizes, and the sizes must fill the file.
    """
    start, size = np.dtype([("index", _INDEX), ("lists", "<u8")]), os.fstat(file.fileno()).st_size
    known = np.frombuffer(file.read(start.itemsize).ljust(start.itemsize, b"\0"), start)[0]
    lists, entry = int(known["lists"]), dimension * DTYPES[dtype] + np.dtype(np.int64).itemsize
    fits = 0 < lists <= LISTS and 0 < dimension and 4 * lists * dimension < min(LARGEST_HEADER, size)
    layout = _layout(dimension, dtype, lists) if fits else None
    if layout and layout.itemsize <= size:
        file.seek(0)
        header = np.frombuffer(file.read(layout.itemsize), layout)[0]
        numbers = [header["centers"], *([header["ranges"]] if dtype == "int8" else [])]
        sizes = header["sizes"].tolist()
        if layout.itemsize + sum(sizes) * entry == size and all(np.isfinite(each).all() for each in numbers):
            index = empty_index(dimension, dtype, lists)
            index.quantizer.add(np.ascontiguousarray(header["centers"]))
            if dtype == "int8":
                load_faiss().copy_array_to_vector(header["ranges"].ravel(), index.sq.trained)
            index.is_trained, index.ntotal = True, sum(sizes)
            if header_of(index, dtype, sizes).tobytes() == header.tobytes():
                return header, index
    raise ValueError(f"{path} is damaged, or does not hold {dtype} of dimension {dimension}: build the index again")


def mapped_lists(file: BinaryIO, start: int, sizes: np.ndarray, code_size: int) -> Any:
    """Maps lists, in the form of `_layout`, whose ``sizes`` fill a file from a byte on, as InvertedLists of faiss."""
    faiss = load_faiss()
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size, lists.read_only = len(sizes), code_size, True
    lists.filename = f"/proc/self/fd/{file.fileno()}"  # by its number, as faiss takes no path that is not UTF-8
    lists.totsize = os.fstat(file.fileno()).st_size
    lists.prefetch_nthread = 0  # 32 threads that read ahead take as long as the search
    offsets = start + (np.cumsum(sizes) - sizes) * np.uint64(code_size + np.dtype(np.int64).itemsize)
    table = np.stack([sizes, sizes, offsets], axis=1).astype(np.uint64)  # size, capacity, first byte
    lists.lists.resize(len(sizes))
    faiss.memcpy(lists.lists.data(), faiss.swig_ptr(table), table.nbytes)
    lists.do_mmap()
    return lists


def replace_lists(index: Any, lists: Any) -> None:
    """Gives an index of faiss other lists, which it frees."""
    index.replace_invlists(lists, True)
    lists.this.disown()


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
