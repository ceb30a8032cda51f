"""Inverted lists of embeddings (IVF; Sivic and Zisserman, 2003) in a file of faiss.

A search compares its query with the centroids of all lists, then with the entries of the nearest lists. Every entry has
an ID. With int8, a scalar quantizer stores each component of an embedding as a byte, which spans the range of this
component in a training sample.

Shapes: N entries, E embedding size, M results.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from partial_fc.utils.regular_files import open_regular

INSTALL = "pip install faiss-cpu"
DTYPES = {"int8": 1, "float32": 4}  # bytes per component
LISTS = 4096  # maximum number of lists; this one and the next two were tuned with benchmarks/index.py
ENTRIES_PER_LIST = 40  # entries per list, below the maximum number of lists
EFFORT = 512  # lists that a search reads
MARGIN = 0.05  # of the sample's range, added on either side for components outside the sample
CUT = 0.1  # length that quantization may clip off an embedding, which costs 0.005 of a cosine
LONGEST = {"int8": 1 + CUT, "float32": 1.01}  # maximum length of a stored embedding, which bounds the cosines
LARGEST_HEADER = 1 << 28  # bytes; 4096 lists of dimension 512 need 8 MB
# The fields at the start of each faiss index used here, both for the lists and for their centroids.
_INDEX = [("kind", "S4"), ("dimension", "<i4"), ("entries", "<i8"), ("unused", "<i8", 2), ("trained", "u1")]
_INDEX += [("metric", "<i4")]
_KINDS = {"int8": b"IwSq", "float32": b"IwFl"}


class Positions(NamedTuple):
    """The IDs of all entries in ascending order, (N,), with the list of each entry and its offset in this list."""

    ids: np.ndarray
    list_numbers: np.ndarray
    offsets: np.ndarray


class Lists:
    """Inverted lists in a memory-mapped file that `Writer.save` wrote. A search reads the lists that it needs.

    Args:
        path: path of the file.
        dimension: E.
        dtype: a key of DTYPES.
        checksums: checksum of each list, from `Writer.save`; None for a file of format version 1, which has none.

    Attributes:
        index: the faiss index.
        header_checksum: CRC-32 of the file's header.

    Raises:
        ImportError: faiss is missing.
        ValueError: The file is damaged, or holds other embeddings.
    """

    def __init__(self, path: str, dimension: int, dtype: str, checksums: np.ndarray | None = None):
        with open_regular(path) as file:
            header, self.index = _read_header(file, path, dimension, dtype)
            if checksums is not None and checksums.shape != (self.index.nlist,):
                raise damaged(path)
            replace_lists(self.index, mapped_lists(file, header.nbytes, header["sizes"], self.index.code_size))
        self.header_checksum = zlib.crc32(header.tobytes())
        self._path, self._longest, self._checksums = path, LONGEST[dtype], checksums
        self._verified = np.zeros(self.index.nlist, bool)
        self.index.parallel_mode = 1  # the threads share the lists of one query

    def __len__(self) -> int:
        return self.index.ntotal

    def present(self, count: int) -> np.ndarray:
        """Returns which of the IDs 0 .. count - 1 have an entry, (count,) bool; ValueError if there are other IDs."""
        is_present, ids = np.zeros(count, bool), self._positions.ids
        if len(ids) and ids[-1] >= count:
            raise ValueError(f"{self._path} is damaged: entry {ids[-1]} has no name; build the index again")
        is_present[ids] = True
        return is_present

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns the embeddings of entries, (N, E) float32 of length 1; ValueError for an unknown ID."""
        known = self._positions.ids
        rank = np.searchsorted(known, ids)
        if not np.array_equal(known[rank[rank < len(known)]], ids):
            raise ValueError(f"{self._path} is damaged: entries are missing; build the index again")
        codes = np.empty((len(ids), self.index.code_size), np.uint8)
        positions = zip(self._positions.list_numbers[rank], self._positions.offsets[rank])
        for row, (list_number, offset) in enumerate(positions):
            codes[row] = entries(self.index.invlists, int(list_number))[0][offset]
        return decoded(self.index, codes)

    def nearest(self, query: np.ndarray, top: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns the IDs (M,) and cosines (M,) of the nearest entries, at most ``top``, best first.

        Args:
            query: embedding (E,) of length 1.
            top: maximum number of results.
            exact: whether to read all lists.

        Raises:
            ValueError: A list that holds a result is damaged.
        """
        lists, count = self.index.nlist, max(1, len(self))
        # After many removals the lists are short, so more of them are read, always enough to hold twice the results.
        effort = max(EFFORT * max(1, lists // wanted_lists(count)), 2 * top * lists // count)
        self.index.nprobe = lists if exact else effort
        results = self.index.search_and_return_codes(query[None], min(top, count), include_listnos=True)
        is_result = results[1][0] >= 0
        cosines, ids, codes = (result[0][is_result] for result in results)
        # A code starts with its list number. Only the lists of the results are verified: verifying every list that was
        # read would double the time of a search.
        for list_number in {bytes(code[: self.index.coarse_code_size()]) for code in codes}:
            self._verify(int.from_bytes(list_number, "little"))
        if not (np.abs(cosines) <= self._longest).all():
            raise damaged(self._path)
        return ids, cosines.clip(-1, 1)  # quantized embeddings may be longer than 1

    def verify(self) -> None:
        """Reads all entries; raises ValueError if a list does not match its checksum."""
        for list_number in range(self.index.nlist):
            self._verify(list_number)

    def _verify(self, list_number: int) -> None:
        if self._checksums is not None and not self._verified[list_number]:
            if checksum(*entries(self.index.invlists, list_number)) != self._checksums[list_number]:
                raise damaged(self._path)
            self._verified[list_number] = True

    def ids(self) -> Iterator[np.ndarray]:
        """Yields the IDs of each list."""
        for list_number in range(self.index.nlist):
            yield entries(self.index.invlists, list_number)[1]

    @cached_property
    def _positions(self) -> Positions:
        parts = list(self.ids())
        sizes = [len(part) for part in parts]
        list_numbers = np.repeat(np.arange(len(sizes)), sizes)
        offsets = np.concatenate([np.arange(size) for size in sizes])
        joined = np.concatenate(parts)
        order = joined.argsort()
        ids = joined[order]
        if len(ids) and (ids[0] < 0 or (ids[1:] == ids[:-1]).any()):
            raise ValueError(f"{self._path} is damaged: entries have equal or negative IDs; build the index again")
        return Positions(ids, list_numbers[order], offsets[order])


def checksum(*arrays: np.ndarray) -> int:
    """Returns the CRC-32 of the arrays' bytes, one array after another."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, crc)
    return crc


def damaged(path: str) -> ValueError:
    """Returns the error for a file whose content has changed since it was written."""
    return ValueError(f"{path} is damaged: it does not match its checksum; build the index again")


def entries(lists: Any, list_number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns read-only codes (n, bytes) uint8 and IDs (n,) int64 of a list in faiss's InvertedLists."""
    size, view = lists.list_size(list_number), load_faiss().rev_swig_ptr
    if not size:  # faiss returns null pointers
        return np.empty((0, lists.code_size), np.uint8), np.empty(0, np.int64)
    codes = view(lists.get_codes(list_number), size * lists.code_size).reshape(size, -1)
    return codes, view(lists.get_ids(list_number), size)


def decoded(index: Any, codes: np.ndarray) -> np.ndarray:
    """Decodes codes (N, bytes) uint8 of a faiss index to embeddings (N, E) float32 of length 1."""
    rows = index.sq.decode(codes) if index.code_size == index.d else codes.view(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _layout(dimension: int, dtype: str, lists: int) -> np.dtype:
    """Returns the dtype of a file's header, as faiss writes it for lists that are "full".

    The entries follow the header, list by list: first the codes (n, bytes) uint8, then the IDs (n,) int64.
    """
    fields: list[tuple] = [("index", _INDEX), ("lists", "<u8"), ("probes", "<u8"), ("quantizer", _INDEX)]
    fields += [("floats", "<u8"), ("centroids", "<f4", (lists, dimension)), ("map", "u1"), ("mapped", "<u8")]
    if dtype == "int8":
        fields += [("type", "<i4"), ("range", "<i4"), ("margin", "<f4"), ("dimension", "<u8"), ("bytes", "<u8")]
        fields += [("bounds", "<u8"), ("ranges", "<f4", (2, dimension)), ("code", "<u8"), ("residual", "u1")]
    fields += [("end", "S4"), ("end_lists", "<u8"), ("end_code", "<u8"), ("form", "S4"), ("count", "<u8")]
    return np.dtype([*fields, ("sizes", "<u8", (lists,))])


def header_of(index: Any, dtype: str, sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the header of a faiss index, a scalar of `_layout`. ``sizes`` are the lists' numbers of entries."""
    faiss, lists, code = load_faiss(), index.nlist, index.code_size
    header = np.zeros((), _layout(index.d, dtype, lists))
    unused = [1 << 20] * 2  # as faiss writes them
    header["index"] = (_KINDS[dtype], index.d, int(np.sum(sizes)), unused, 1, faiss.METRIC_INNER_PRODUCT)
    header["quantizer"] = (b"IxFI", index.d, lists, unused, 1, faiss.METRIC_INNER_PRODUCT)
    header["lists"] = header["end_lists"] = header["count"] = lists
    header["probes"], header["floats"], header["end_code"] = 1, lists * index.d, code
    header["centroids"] = index.quantizer.reconstruct_n(0, lists)
    header["end"], header["form"], header["sizes"] = b"ilar", b"full", sizes
    if dtype == "int8":
        header["type"], header["margin"] = faiss.ScalarQuantizer.QT_8bit, MARGIN
        header["dimension"] = header["bytes"] = header["code"] = index.d
        header["bounds"], header["ranges"] = 2 * index.d, faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    return header


def _read_header(file: BinaryIO, path: str, dimension: int, dtype: str) -> tuple[np.ndarray, Any]:
    """Returns the header of a file, a scalar of `_layout`, and a faiss index with this header and empty lists.

    faiss would trust the sizes and paths in a file that somebody else wrote. So NumPy reads the header, which must be
    equal, byte for byte, to what `header_of` returns for its centroids, ranges and sizes; and the sizes must fill the
    file.
    """
    error = ValueError(f"{path} is damaged, or does not hold {dtype} of dimension {dimension}: build the index again")
    start, size = np.dtype([("index", _INDEX), ("lists", "<u8")]), os.fstat(file.fileno()).st_size
    lists = int(np.frombuffer(file.read(start.itemsize).ljust(start.itemsize, b"\0"), start)[0]["lists"])
    if not (0 < lists <= LISTS and 0 < dimension and 4 * lists * dimension < min(LARGEST_HEADER, size)):
        raise error
    layout = _layout(dimension, dtype, lists)
    if layout.itemsize > size:
        raise error
    file.seek(0)
    header = np.frombuffer(file.read(layout.itemsize), layout)[0]
    sizes = header["sizes"].tolist()
    entry_size = dimension * DTYPES[dtype] + np.dtype(np.int64).itemsize
    floats = ["centroids", "ranges"] if dtype == "int8" else ["centroids"]
    if layout.itemsize + sum(sizes) * entry_size != size or not all(np.isfinite(header[name]).all() for name in floats):
        raise error
    index = empty_index(dimension, dtype, lists)
    index.quantizer.add(np.ascontiguousarray(header["centroids"]))
    if dtype == "int8":
        load_faiss().copy_array_to_vector(header["ranges"].ravel(), index.sq.trained)
    index.is_trained, index.ntotal = True, sum(sizes)
    if header_of(index, dtype, sizes).tobytes() != header.tobytes():
        raise error
    return header, index


def mapped_lists(file: BinaryIO, start: int, sizes: np.ndarray, code_size: int) -> Any:
    """Maps the lists in a file, from byte ``start`` to its end and in the form of `_layout`, as faiss's InvertedLists.

    ``sizes`` (uint64) are the lists' numbers of entries.
    """
    faiss = load_faiss()
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size, lists.read_only = len(sizes), code_size, True
    lists.filename = f"/proc/self/fd/{file.fileno()}"  # faiss takes only UTF-8 paths, and the file may have no name
    lists.totsize = os.fstat(file.fileno()).st_size
    lists.prefetch_nthread = 0  # starting faiss's 32 read-ahead threads takes as long as a search
    offsets = start + (np.cumsum(sizes) - sizes) * np.uint64(code_size + np.dtype(np.int64).itemsize)
    table = np.stack([sizes, sizes, offsets], axis=1).astype(np.uint64)  # size, capacity, first byte
    lists.lists.resize(len(sizes))
    faiss.memcpy(lists.lists.data(), faiss.swig_ptr(table), table.nbytes)
    lists.do_mmap()
    return lists


def replace_lists(index: Any, lists: Any) -> None:
    """Replaces the lists of a faiss index, which becomes the owner of the new ones."""
    index.replace_invlists(lists, True)
    lists.this.disown()


def wanted_lists(count: int) -> int:
    """Returns the number of lists for a number of entries."""
    return min(LISTS, max(1, count // ENTRIES_PER_LIST))


def empty_index(dimension: int, dtype: str, lists: int, quantizer: Any = None) -> Any:
    """Returns an untrained faiss index without entries; raises ImportError without faiss.

    ``quantizer`` is a faiss index of the lists' centroids (default: an empty one).
    """
    faiss = load_faiss()
    shape = quantizer or faiss.IndexFlatIP(dimension), dimension, lists
    if dtype == "float32":
        index = faiss.IndexIVFFlat(*shape, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFScalarQuantizer(*shape, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False)
        index.sq.rangestat_arg = MARGIN
    index.cp.min_points_per_centroid = 1  # otherwise it warns about one list with few entries
    return index


def load_faiss() -> Any:
    """Returns the module faiss; the ImportError says what to install."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"this command needs the package faiss-cpu ({error}): {INSTALL}") from None
    return faiss
