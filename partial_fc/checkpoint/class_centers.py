"""Saved class centers, which are read by class, whatever the number of ranks that wrote them.

Shapes: C classes, L classes of one rank, E embedding, n requested classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain

import numpy as np

from partial_fc.utils.text import plural

from .arrays import float_values, open_rows
from .layout import center_file
from .manifest import Manifest
from .mxnet_params import saved_arrays
from .rank_files import files_of_ranks

# Files of the original trainer and of MemoryBank.save; {} is the rank.
ORIGINAL_FILES = ("{}_centers.param", "{}_centers_mom.param")
ROWS = 1024  # rows that are read from a file at a time
HELD_OPEN = 256  # maximum number of open files, which are limited per process; others are reopened when read


class FileRows:
    """The rows (n, width) of an array that ``open_array`` maps into memory while they are read."""

    def __init__(self, open_array: Callable[[], np.ndarray]):
        self._open, self.shape = open_array, open_array().shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self._open()[rows]


Shards = Sequence[np.ndarray | FileRows]


class SavedClasses:
    """Centers of all classes and the states of their optimizer, read from files on request.

    Args:
        shards: "weight" and the name of each state -> consecutive shards, each (rows, width) float32, or uint16, see
            float_values. A row belongs to a class: its sub-centers follow one another.
        embedding_size: E; None if each class has one center.

    Attributes:
        num_classes: C.
        widths: numbers per class of the centers, "weight", and of each state.
        embedding_size: E.
        sub_centers: number of centers per class.
    """

    def __init__(self, shards: Mapping[str, Shards], embedding_size: int | None = None):
        self._shards = shards
        self._stops = np.cumsum([len(shard) for shard in shards["weight"]])
        self.num_classes = int(self._stops[-1])
        self.widths: dict[str, int] = {field: of_field[0].shape[1] for field, of_field in shards.items()}
        self.embedding_size = embedding_size or self.widths["weight"]
        self.sub_centers = self.widths["weight"] // self.embedding_size

    @classmethod
    def of_checkpoint(cls, path: str, manifest: Manifest, head: str = "") -> SavedClasses:
        """Opens the centers of a head in the checkpoint's folder ``path``; errors name the file."""
        opened, manifest = lru_cache(HELD_OPEN)(open_rows), manifest.of_head(head)
        return cls(
            {
                field: [
                    FileRows(partial(opened, os.path.join(path, center_file(field, rank, head)), stop - start, width))
                    for rank, (start, stop) in enumerate(manifest.shards)
                ]
                for field, width in manifest.center_widths.items()
            },
            manifest.embedding_size,
        )

    @classmethod
    def of_original(cls, folder: str) -> SavedClasses:
        """Opens ``<rank>_centers.param`` and ``<rank>_centers_mom.param``, as MemoryBank.save writes them.

        The original trainer writes such files, too, with ceil(C / R) rows per rank, so that the last rows may belong to
        no class. Momentum files are optional. Raises OSError or ValueError, which names the file, if one is missing or
        damaged.
        """
        opened = lru_cache(HELD_OPEN)(_open_pieces)

        def piece(path: str, number: int) -> np.ndarray:
            return opened(path)[number]

        weight, weight_mom = (
            [[FileRows(partial(piece, path, n)) for n in range(len(opened(path)))] for path in paths]
            for paths in (files_of_ranks(folder, name) for name in ORIGINAL_FILES)
        )
        if not weight:
            raise FileNotFoundError(f"{folder} has no 0_centers.param: it needs <rank>_centers.param of all ranks")
        return cls.of_ranks(folder, weight, weight_mom)

    @classmethod
    def of_ranks(cls, folder: str, weight: Sequence[Shards], weight_mom: Sequence[Shards]) -> SavedClasses:
        """Returns the centers of all ranks, in order, and their momentum if it was saved.

        Args:
            folder: folder of the files, for messages.
            weight, weight_mom: shards of each rank; ``weight_mom`` may be empty.

        Raises:
            ValueError: The files are not of one training; the message names the folder.
        """
        fix = "copy the files of all ranks of one training again"
        rows, rows_mom = ([sum(map(len, shards)) for shards in arrays] for arrays in (weight, weight_mom))
        if weight_mom and rows != rows_mom:
            raise ValueError(
                f"{folder}: the ranks' files of centers have {rows} rows, the files of momentum {rows_mom}; {fix}"
            )
        # The first ranks may have one row more than the others.
        if max(rows) > min(rows) + 1 or sorted(rows, reverse=True) != rows:
            raise ValueError(
                f"{folder}: the ranks' files of centers have {rows} rows, so they are not all of one training, or have "
                f"sub-centers, which only a checkpoint keeps by class; {fix}"
            )
        shards, shards_mom = (list(chain.from_iterable(arrays)) for arrays in (weight, weight_mom))
        if len({array.shape[1] for array in (*shards, *shards_mom)}) > 1:
            raise ValueError(f"{folder}: the files of centers have different embedding sizes; {fix}")
        return cls({"weight": shards} | ({"weight_mom": shards_mom} if shards_mom else {}))

    def without_states(self) -> SavedClasses:
        """Returns the centers alone, to start a new training with."""
        return SavedClasses({"weight": self._shards["weight"]}, self.embedding_size)

    def require_widths(self, widths: Mapping[str, int], sub_centers: int = 1) -> None:
        """Checks that a training with these widths can take the centers, and the states if there are any.

        Raises:
            ValueError: The centers have another embedding size, a class has another number of centers, or the states
                are of another optimizer.
        """
        saved, expected = self.embedding_size, widths["weight"] // sub_centers
        if saved != expected:
            raise ValueError(
                f"it holds centers of embedding size {saved}, expected {expected}: set embedding_size={saved}"
            )
        if self.sub_centers != sub_centers:
            raise ValueError(
                f"its classes have {plural(self.sub_centers, 'center')} each, but the classes of this training have "
                f"{sub_centers}: set layer_options=sub_centers={self.sub_centers}"
            )
        if len(self.widths) > 1 and self.widths != widths:
            states, own_states = (", ".join(sorted(each.keys() - {"weight"})) for each in (self.widths, widths))
            raise ValueError(
                f"it holds the states {states} of the centers' optimizer, but this training's optimizer has "
                f"{own_states or 'none'}: set center_optimizer, or take the weights alone with --pretrained"
            )

    def rows(self, field: str, classes: np.ndarray) -> np.ndarray:
        """Returns the rows (n, width) float32 of classes (n,) int64, each in 0..C-1, in any order.

        ``field`` is a key of ``widths``. Raises ValueError for other classes, or if a number is not finite.
        """
        if len(classes) and not 0 <= classes.min() <= classes.max() < self.num_classes:
            raise ValueError(
                f"classes {classes.min()}..{classes.max()} are requested, but {self.num_classes} were saved"
            )
        rows = np.empty((len(classes), self.widths[field]), np.float32)
        shards = self._shards[field]
        shard_numbers = np.searchsorted(self._stops, classes, side="right")
        for number in np.unique(shard_numbers):  # opens each file once
            selected, shard = shard_numbers == number, shards[number]
            rows[selected] = float_values(shard[classes[selected] - (self._stops[number] - len(shard))])
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise ValueError(f"the {field} of class {classes[finite.argmin()]} is not finite: take other centers")
        return rows

    def blocks(
        self, field: str, classes: np.ndarray, current: Callable[[slice], np.ndarray]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first row, rows) for a bank, block by block, without blocks that have only new classes.

        Args:
            field: a key of ``widths``.
            classes: (L,) int64, the saved class of each row of the bank, or -1 for a new class, which keeps its row.
            current: slice -> a copy of these rows of the bank.
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
