"""The class centers that a training has saved, by class, whatever number of ranks has written them.

Shapes: C classes, L classes of one rank, E embedding, n classes asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from .arrays import open_rows
from .layout import centers_file, momentum_file
from .manifest import Manifest
from .mxnet_params import saved_arrays

Shards = Sequence[np.ndarray]


class SavedClasses:
    """Centers and momentum of all classes, read from their files when they are asked for.

    Args:
        weight: (rows, E) float32 each, which follow one another.
        weight_mom: likewise, of the same classes; None where there is no momentum, which then is zero.

    Attributes:
        num_classes, embedding_size: C and E.
    """

    def __init__(self, weight: Shards, weight_mom: Shards | None):
        self._shards: dict[str, Shards] = {"weight": weight, "weight_mom": weight_mom or ()}
        self._behind = np.cumsum([len(shard) for shard in weight])
        self.num_classes, self.embedding_size = int(self._behind[-1]), weight[0].shape[1]

    @classmethod
    def of_checkpoint(cls, path: str, manifest: Manifest) -> SavedClasses:
        """Those of a checkpoint in the folder ``path``.

        Raises:
            OSError, ValueError: a file cannot be read, or is not of the shape that the manifest says.
        """
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
        """Those in ``<rank>_centers.param`` and ``<rank>_centers_mom.param``, as MemoryBank.save writes them.

        The original trainer, too; it gives every rank ceil(C / R) rows, of which the last ones may be of no class.
        Without files of momentum that is zero.

        Raises:
            OSError, ValueError: a file is missing or damaged; names it.
        """
        weight, weight_mom = (_of_kind(folder, kind) for kind in ("centers", "centers_mom"))
        if not weight:
            raise FileNotFoundError(f"{folder} has no 0_centers.param: the class centers of all ranks are read there")
        if weight_mom and [len(array) for array in weight] != [len(array) for array in weight_mom]:
            raise ValueError(f"{folder}: the files of centers and of momentum have not the same rows; copy all again")
        if len({array.shape[1] for array in weight + weight_mom}) > 1:
            raise ValueError(f"{folder}: the files of centers are of several embedding sizes; copy all again")
        return cls(weight, weight_mom or None)

    def rows(self, field: str, classes: np.ndarray) -> np.ndarray:
        """The rows of some classes.

        Args:
            field: "weight" or "weight_mom".
            classes: (n,) int64, each in 0 .. C-1, in any order.

        Returns:
            (n, E) float32.

        Raises:
            ValueError: a class is none of these.
        """
        if len(classes) and not 0 <= classes.min() <= classes.max() < self.num_classes:
            raise ValueError(f"classes {classes.min()}..{classes.max()} are asked for, there are {self.num_classes}")
        found = np.zeros((len(classes), self.embedding_size), np.float32)
        shards = self._shards[field]
        shard_of = np.searchsorted(self._behind, classes, side="right")
        for number in np.unique(shard_of) if shards else ():
            asked, shard = shard_of == number, shards[number]
            found[asked] = shard[classes[asked] - (self._behind[number] - len(shard))]
        return found


def _of_kind(folder: str, kind: str) -> list[np.ndarray]:
    """The arrays in the files of all ranks, in order."""
    ranks = sum(re.fullmatch(rf"\d+_{kind}\.param", name) is not None for name in os.listdir(folder))
    pieces = [_pieces(os.path.join(folder, f"{rank}_{kind}.param")) for rank in range(ranks)]
    rows = [sum(map(len, arrays)) for arrays in pieces]
    # The split gives some ranks one row more than others, the original's gives all the same.
    if rows and (max(rows) > min(rows) + 1 or sorted(rows, reverse=True) != rows):
        raise ValueError(f"{folder}: the ranks' files of {kind} have {rows} rows, which no one training writes")
    return [array for arrays in pieces for array in arrays]


def _pieces(path: str) -> list[np.ndarray]:
    try:
        arrays = saved_arrays(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    wrong = [array.shape for array in arrays if array.ndim != 2]
    if wrong:
        raise ValueError(f"{path}: an array of shape {wrong[0]} is no rows of classes")
    return arrays
