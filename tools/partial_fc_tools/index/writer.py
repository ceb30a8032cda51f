"""Writes the lists of a new or changed index without holding its entries in memory.

New entries wait in unnamed temporary files, each with the same lists as the index. At the end, every list is copied
from the old file and from these files. A command that is interrupted leaves nothing behind.

Shapes: N embeddings, E embedding size.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from partial_fc.utils.atomic_io import named_in_errors, new_file
from partial_fc.utils.hashing import mix
from partial_fc.utils.progress import progress

from .ivf import (
    CUT,
    ENTRIES_PER_LIST,
    LISTS,
    Lists,
    checksum,
    decoded,
    empty_index,
    entries,
    header_of,
    load_faiss,
    mapped_lists,
    replace_lists,
    wanted_lists,
)

SAMPLE = LISTS * ENTRIES_PER_LIST  # maximum number of embeddings that centroids are trained on
ADDED = 1_000  # maximum number of embeddings that are kept as they were added
PART = 20_000  # embeddings that are added between two checks for Ctrl-C
HELD = 1 << 29  # bytes of new entries in memory; faiss allocates up to twice as many

Rows = Callable[[Any], np.ndarray]  # maps a slice or an array of indices to embeddings (n, E) of length 1


class Writer:
    """Builds or changes lists, which `save` writes.

    Args:
        folder: folder of the index; temporary files are on the same disk.
        dimension: E.
        dtype: a key of DTYPES.
        old: lists whose entries are kept.
        added: the old value of the attribute ``added``.

    Attributes:
        added: (K,) of `added_dtype`, a sample of the uncompressed embeddings, with which `check` compares the lists.

    Raises:
        ImportError: faiss is missing.
    """

    def __init__(
        self, folder: str, dimension: int, dtype: str, old: Lists | None = None, added: np.ndarray | None = None
    ):
        self._folder, self._dimension, self._dtype = folder, dimension, dtype
        self._old = old  # keeps the first source and the quantizers below alive
        if old is None:
            self._memory, self._sources, self._stored = empty_index(dimension, dtype, 1), [], 0
        else:
            self._memory = empty_index(dimension, dtype, old.index.nlist, old.index.quantizer)
            if dtype == "int8":
                self._memory.sq = old.index.sq
            self._memory.is_trained = True
            self._sources, self._stored = [old.index.invlists], len(old)
        self._removed = np.zeros(0, bool)  # by ID
        self.added = np.empty(0, added_dtype(dimension)) if added is None else added

    def __len__(self) -> int:
        return self._stored - int(self._removed.sum())

    def remove(self, ids: np.ndarray) -> None:
        """Removes old entries."""
        self._removed = np.zeros(ids.max() + 1, bool)
        self._removed[ids] = True
        self.added = self.added[self._is_kept(self.added["number"])]

    def add(self, first: int, rows: Rows, count: int) -> None:
        """Adds ``count`` embeddings. Retrains the lists if they are too few or int8 cannot represent the new values.

        Args:
            first: ID of the first embedding, above the IDs of all entries.
            rows: returns the embeddings, see Rows.
            count: N.

        Raises:
            OSError: The disk is full.
        """
        if not count:
            return
        wanted = wanted_lists(len(self) + count)
        ranges, clipped = self._survey(rows, count)
        if not self._memory.is_trained or wanted >= 2 * self._memory.nlist or clipped > CUT:
            self._retrain(wanted, rows(_sample(count)), ranges)
        with progress(count, "embedding", "adding") as bar:
            for start, part in _parts(rows, count):
                self._add(part, np.arange(first + start, first + start + len(part)))
                bar.update(len(part))
        self._store()
        chosen = sample_positions(np.arange(first, first + count))
        new = np.empty(len(chosen), self.added.dtype)
        new["number"], new["embedding"] = first + chosen, rows(chosen)
        candidates = np.concatenate([self.added, new])
        self.added = candidates[sample_positions(candidates["number"])]

    def save(self, path: str) -> np.ndarray:
        """Writes all entries in the format of faiss; returns each list's checksum (uint32). Raises OSError."""
        lists = range(self._memory.nlist)
        checksums = np.empty(len(lists), np.uint32)
        with named_in_errors(path), new_file(path) as file:
            sizes = [sum(self._size(source, number) for source in self._sources) for number in lists]
            file.write(header_of(self._memory, self._dtype, sizes).tobytes())
            for number in lists:
                parts = []
                for codes, ids in (entries(source, number) for source in self._sources):
                    is_kept = self._is_kept(ids)
                    parts.append((codes[is_kept], ids[is_kept]))
                arrays = [array for column in zip(*parts) for array in column]  # all codes, then all IDs
                file.writelines(arrays)
                checksums[number] = checksum(*arrays)
        return checksums

    def _is_kept(self, ids: np.ndarray) -> np.ndarray:
        """Returns which of these entries have not been removed, (n,) bool."""
        is_kept = np.ones(len(ids), bool)
        is_old = ids < len(self._removed)
        is_kept[is_old] = ~self._removed[ids[is_old]]
        return is_kept

    def _size(self, source: Any, list_number: int) -> int:
        """Returns the number of entries in a list that have not been removed."""
        if not self._removed.any():
            return source.list_size(list_number)  # without reading them
        return int(self._is_kept(entries(source, list_number)[1]).sum())

    def _survey(self, rows: Rows, count: int) -> tuple[np.ndarray, float]:
        """Returns the ranges (2, E) of the new embeddings' components, and the longest part that int8 would clip off.

        It reads all new embeddings, because clipping even one of them would store a different embedding.
        """
        low, high, clipped = np.full(self._dimension, np.inf), np.full(self._dimension, -np.inf), 0.0
        if self._dtype == "int8":
            bounds = _byte_ranges(self._memory) if self._memory.is_trained else None
            for _, part in _parts(rows, count):
                low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
                if bounds is not None:
                    error = part.clip(*bounds) - part
                    clipped = max(clipped, float(np.einsum("ne,ne->n", error, error).max()) ** 0.5)
        return np.stack([low, high]), clipped

    def _retrain(self, count: int, sample: np.ndarray, ranges: np.ndarray) -> None:
        """Distributes the entries over ``count`` new lists, trained on old entries and on a sample of the new ones.

        With int8, the new byte ranges include the old ranges and the new embeddings' ``ranges``.
        """
        before, sources, is_chosen = self._memory, self._sources, np.zeros(self._stored, bool)
        is_chosen[_sample(self._stored)] = True
        known, first = [], 0
        for codes, _ in _all_entries(sources):
            known.append(decoded(before, codes[is_chosen[first : first + len(codes)]]))
            first += len(codes)
        after = empty_index(self._dimension, self._dtype, count)
        after.train(np.concatenate([*known, sample]))
        if self._dtype == "int8":
            # The old ranges never shrink, because only a sample of the old entries is read.
            all_ranges = [_byte_ranges(after), ranges, *([_byte_ranges(before)] if before.is_trained else [])]
            low, high = np.min(all_ranges, axis=0)[0], np.max(all_ranges, axis=0)[1]
            load_faiss().copy_array_to_vector(np.concatenate([low, high - low]).astype(np.float32), after.sq.trained)
        self._memory, self._sources, self._stored = after, [], 0
        for codes, ids in _all_entries(sources):
            self._add(decoded(before, codes), ids)

    def _add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        self._memory.add_with_ids(rows, ids)
        if self._memory.ntotal * self._memory.code_size >= HELD:
            self._store()

    def _store(self) -> None:
        """Moves the entries in memory to a temporary file."""
        index = self._memory
        if not index.ntotal:
            return
        sizes = [index.invlists.list_size(number) for number in range(index.nlist)]
        with named_in_errors(self._folder), tempfile.TemporaryFile(dir=self._folder) as file:
            for number in range(index.nlist):
                file.writelines(array.data for array in entries(index.invlists, number))
            file.flush()
            self._sources.append(mapped_lists(file, 0, np.array(sizes, np.uint64), index.code_size))
        self._stored += index.ntotal
        # reset() would not free the memory.
        replace_lists(index, load_faiss().ArrayInvertedLists(index.nlist, index.code_size))
        index.ntotal = 0


def added_dtype(dimension: int) -> np.dtype:
    """Returns the dtype of `Writer.added`: the ID of an entry, and its embedding."""
    return np.dtype([("number", "<i8"), ("embedding", "<f4", (dimension,))])


def sample_positions(ids: np.ndarray) -> np.ndarray:
    """Returns the sorted positions of at most ADDED entries, drawn by a hash of their IDs.

    Changes of an index therefore keep the sample, except for entries that are removed or displaced.
    """
    return np.sort(np.argsort(mix(ids.astype(np.uint64)), kind="stable")[:ADDED])


def _all_entries(sources: list[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the codes (n, bytes) uint8 and the IDs (n,) of each list in each source."""
    for source in sources:
        for list_number in range(source.nlist):
            yield entries(source, list_number)


def _byte_ranges(index: Any) -> np.ndarray:
    """Returns the least and the largest value (2, E) that the bytes of each component can represent."""
    return np.cumsum(load_faiss().vector_to_array(index.sq.trained).reshape(2, -1), axis=0)


def _parts(rows: Rows, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the index of the first row of each part, and its embeddings."""
    for start in range(0, count, PART):
        yield start, np.ascontiguousarray(rows(slice(start, min(start + PART, count))), np.float32)


def _sample(count: int) -> np.ndarray:
    """Returns at most SAMPLE of the numbers 0 .. count - 1, sorted."""
    return np.sort(np.random.default_rng(0).choice(count, min(count, SAMPLE), replace=False))
