"""Saved class centers, read by class, whatever number of ranks wrote them.

Shapes: C classes, L classes of one rank, E embedding, n requested classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from .arrays import open_rows
from .layout import centers_file, momentum_file
from .manifest import Manifest
from .mxnet_params import saved_arrays
from .rank_files import files_of_ranks

Shards = Sequence[np.ndarray]

# Files of the original trainer and of MemoryBank.save, {} is the rank.
ORIGINAL_FILES = ("{}_centers.param", "{}_centers_mom.param")
ROWS = 1024  # that are read from a file at a time


class SavedClasses:
    """Centers and momentum of all classes, read from their files on request.

    Args:
        weight: consecutive shards, each (rows, E) float32.
        weight_mom: momentum of the same classes, likewise; None for zeros.

    Attributes:
        num_classes, embedding_size: C and E.
    """

    def __init__(self, weight: Shards, weight_mom: Shards | None):
        self._shards: dict[str, Shards] = {"weight": weight, "weight_mom": weight_mom or ()}
        self._stops = np.cumsum([len(shard) for shard in weight])
        self.num_classes, self.embedding_size = int(self._stops[-1]), weight[0].shape[1]

    @classmethod
    def of_checkpoint(cls, path: str, manifest: Manifest) -> SavedClasses:
        """Opens the centers of a checkpoint in the folder ``path``; errors name the file."""
        kinds = [
            [
                open_rows(os.path.join(path, file_of(rank)), stop - start, manifest.embedding_size)
                for rank, (start, stop) in enumerate(manifest.shards)
            ]
            for file_of in (centers_file, momentum_file)
        ]
        return cls(*kinds)

    @classmethod
    def of_original(cls, folder: str) -> SavedClasses:
        """Opens ``<rank>_centers.param`` and ``<rank>_centers_mom.param``, as MemoryBank.save writes them.

        The original trainer writes such files, too. It gives every rank ceil(C / R) rows, so that the last rows may
        belong to no class. Without files of momentum, the momentum is zero.

        Raises:
            OSError, ValueError: A file is missing or damaged; names the file.
        """
        weight, weight_mom = ([_open_pieces(path) for path in files_of_ranks(folder, name)] for name in ORIGINAL_FILES)
        if not weight:
            raise FileNotFoundError(f"{folder} has no 0_centers.param: it needs <rank>_centers.param of all ranks")
        return cls.of_ranks(folder, weight, weight_mom)

    @classmethod
    def of_ranks(cls, folder: str, weight: Sequence[Shards], weight_mom: Sequence[Shards]) -> SavedClasses:
        """Returns the centers and momentum of all ranks in order, read from a folder; no momentum means zeros.

        Args:
            folder: for messages.
            weight, weight_mom: the shards of each rank.

        Raises:
            ValueError: They are not of one training; names the folder.
        """
        fix = "copy the files of all ranks of one training again"
        rows, rows_mom = (_rows_of_ranks(arrays) for arrays in (weight, weight_mom))
        if weight_mom and rows != rows_mom:
            raise ValueError(
                f"{folder}: the ranks' files of centers have {rows} rows, those of momentum {rows_mom}; {fix}"
            )
        # Some ranks have one row more than others; those of the original MXNet trainer all have the same number.
        if max(rows) > min(rows) + 1 or sorted(rows, reverse=True) != rows:
            raise ValueError(
                f"{folder}: the ranks' files of centers have {rows} rows, so they are not all of one training; {fix}"
            )
        shards, shards_mom = (list(chain.from_iterable(arrays)) for arrays in (weight, weight_mom))
        if len({array.shape[1] for array in (*shards, *shards_mom)}) > 1:
            raise ValueError(f"{folder}: the files of centers have different embedding sizes; {fix}")
        return cls(shards, shards_mom or None)

    def without_momentum(self) -> SavedClasses:
        """Returns the same centers with a momentum of zero, as a new training starts with."""
        return SavedClasses(self._shards["weight"], None)

    def require_embedding_size(self, embedding_size: int) -> None:
        """Raises ValueError if the centers have another embedding size than the training."""
        if self.embedding_size != embedding_size:
            raise ValueError(
                f"it holds centers of embedding size {self.embedding_size}, expected {embedding_size}: "
                f"set embedding_size={self.embedding_size}"
            )

    def rows(self, field: str, classes: np.ndarray) -> np.ndarray:
        """Returns the rows (n, E) float32 of some classes.

        Args:
            field: "weight" or "weight_mom".
            classes: (n,) int64, each in 0..C-1, in any order; others are a ValueError.
        """
        if len(classes) and not 0 <= classes.min() <= classes.max() < self.num_classes:
            raise ValueError(
                f"classes {classes.min()}..{classes.max()} are requested, but {self.num_classes} were saved"
            )
        rows = np.zeros((len(classes), self.embedding_size), np.float32)
        shards = self._shards[field]
        shard_of = np.searchsorted(self._stops, classes, side="right")
        for number in np.unique(shard_of) if shards else ():
            selected, shard = shard_of == number, shards[number]
            rows[selected] = shard[classes[selected] - (self._stops[number] - len(shard))]
        return rows

    def blocks(
        self, field: str, classes: np.ndarray, current: Callable[[slice], np.ndarray]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields consecutive rows for a bank, block by block; blocks that are new as a whole are left out.

        Args:
            field: "weight" or "weight_mom".
            classes: (L,) int64, the saved class of each row of the bank, -1 for a new class, which keeps its row.
            current: returns a copy of some rows of the bank.
        """
        for row in range(0, len(classes), ROWS):
            part = slice(row, min(row + ROWS, len(classes)))
            known = classes[part] >= 0
            if known.all():
                yield row, self.rows(field, classes[part])
            elif known.any():
                values = current(part)
                values[known] = self.rows(field, classes[part][known])
                yield row, values


def _rows_of_ranks(arrays: Sequence[Shards]) -> list[int]:
    return [sum(map(len, shards)) for shards in arrays]


def _open_pieces(path: str) -> list[np.ndarray]:
    try:
        arrays = saved_arrays(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    wrong = [array.shape for array in arrays if array.ndim != 2]
    if wrong:
        raise ValueError(f"{path} holds an array of shape {wrong[0]}, expected (classes, embedding size)")
    return arrays
