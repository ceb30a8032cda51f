"""The graph of an index: HNSW (arXiv 1603.09320) by usearch, whose entries have numbers.

In int8 an embedding is scaled so that its largest number is 127: cosines do not change by that, and the numbers of long
embeddings, which are small, keep their digits. usearch's own conversion scales all alike.

Shapes: N embeddings, E embedding, M results.
"""

import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

INSTALL = "pip install usearch"
DTYPES = {"int8": "i8", "float32": "f32"}
# By benchmarks/index.py: neighbors of an entry, entries that are tried when one is added, and in a search.
CONNECTIVITY, ADD_EFFORT, EFFORT = 16, 64, 512
CHECKED = 1 << 20  # bytes of links at a time
PART = 1_000  # embeddings between two moments at which Ctrl-C is noticed

Rows = Callable[[slice], np.ndarray]  # of some of N numbers from 0 on -> embeddings (n, E) of length 1


class Graph:
    """Embeddings by number, in memory or mapped from a file.

    Args:
        index: of usearch.
        dtype: a name of DTYPES.
    """

    def __init__(self, index: Any, dtype: str):
        self._index, self._dtype = index, dtype
        self._source: Any = None
        index.expansion_add, index.expansion_search = ADD_EFFORT, EFFORT

    @classmethod
    def new(cls, dimension: int, dtype: str) -> "Graph":
        """Returns a graph without entries; ImportError without usearch."""
        kind = DTYPES[dtype]
        return cls(_usearch().Index(ndim=dimension, metric="cos", dtype=kind, connectivity=CONNECTIVITY), dtype)

    @classmethod
    def open(cls, path: str, dimension: int, dtype: str, mapped: bool) -> "Graph":
        """Reads a file written by `save`; ``mapped``: reads its links alone, and embeddings when a search needs them.

        Raises:
            ImportError: usearch is missing.
            ValueError: The file is damaged, or holds other embeddings; names it.
        """
        with _errors_of(path):
            source = _mapped(path) if mapped else path
            index = _usearch().Index.restore(source, view=mapped)
            if index is None:
                raise ValueError("usearch finds no index in it")
        found = index.ndim, index.dtype.name.lower()
        if found != (dimension, DTYPES[dtype]):
            raise ValueError(f"{path} holds {found[1]} of dimension {found[0]}, not {dtype} of dimension {dimension}")
        graph = cls(index, dtype)
        graph._source = source  # usearch keeps only its address
        return graph

    def __len__(self) -> int:
        return len(self._index)

    def add(self, first: int, rows: Rows, count: int, advance: Callable[[int], object]) -> None:
        """Adds ``count`` embeddings with the numbers from ``first`` on.

        Args:
            first: above the numbers of all entries.
            rows: see Rows.
            count: N.
            advance: called with the number of entries of each finished part.
        """
        for start in range(0, count, PART):
            part = stored(rows(slice(start, min(start + PART, count))), self._dtype)
            numbers = np.arange(first + start, first + start + len(part))
            # With two threads, up to 11 of 6,000 entries cannot be found (usearch 2.26.5).
            _in_thread(self._index.add, numbers, part, threads=1)
            advance(len(part))

    def remove(self, numbers: np.ndarray) -> None:
        """Removes entries; searches pass through their places in the graph, which the next ones added take."""
        self._index.remove(numbers)

    def present(self, count: int) -> np.ndarray:
        """Returns which of the numbers 0 .. count - 1 are entries, (count,) bool."""
        return np.asarray(self._index.contains(np.arange(count)), bool).reshape(count)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the embeddings of entries, (N, E) float32 of length 1."""
        found = np.asarray(self._index.get(numbers), np.float32).reshape(len(numbers), -1)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def nearest(self, query: np.ndarray, top: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns numbers (M,) and cosines (M,) of at most ``top`` entries near a unit ``query`` (E,), best first.

        ``exact`` compares all entries.
        """
        if not len(self):
            return np.empty(0, int), np.empty(0, np.float32)
        self._index.expansion_search = max(EFFORT, 2 * top)
        found = _in_thread(self._index.search, stored(query[None], self._dtype)[0], top, exact=exact, threads=1)
        return found.keys.astype(int), 1 - found.distances

    def save(self, path: str) -> None:
        """Writes the graph; raises OSError."""
        try:
            self._index.save(path)
        except (RuntimeError, ValueError) as error:  # of a full disk
            raise OSError(f"{path} cannot be written: {error}") from None


def stored(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Returns embeddings (N, E) as a graph of this type has them."""
    if dtype == "float32":
        return np.ascontiguousarray(rows, np.float32)
    return np.rint(rows * (127 / np.abs(rows).max(axis=1, keepdims=True))).astype(np.int8)


def _mapped(path: str) -> mmap.mmap:
    """Maps a file of which a search reads scattered embeddings, without what lies around them."""
    with open(path, "rb") as file:
        source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        rows, width = np.frombuffer(source[:8], np.uint32).tolist()  # of the embeddings, which follow; then the links
        source.madvise(mmap.MADV_RANDOM, 0, max(1, min(rows * width, len(source))))
    return source


def links_checksum(path: str) -> int:
    """Returns the CRC-32 of a file of `Graph.save` without the embeddings. usearch follows links that lead nowhere."""
    with open(path, "rb") as file:
        shape = file.read(8)  # see _mapped
        file.seek(int.from_bytes(shape[:4], "little") * int.from_bytes(shape[4:], "little"), os.SEEK_CUR)
        checksum = zlib.crc32(shape)
        while part := file.read(CHECKED):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _in_thread(function: Callable, *args: Any, **options: Any) -> Any:
    """Calls a function of usearch, which in the main thread turns Ctrl-C and SIGTERM into an error of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **options).result()


def _usearch() -> Any:
    try:
        import usearch.index
    except ImportError as error:
        raise ImportError(f"an index needs the package usearch ({error}): {INSTALL}") from None
    return usearch.index


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
