"""The memory bank: the class centers of one rank and their momentum.

Shapes: L classes of this rank, S sampled classes of this rank, E embedding, G global batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.checkpoint import SavedClasses, replace_file
from partial_fc.checkpoint.mxnet_params import array_file_chunks, saved_arrays
from partial_fc.layer.sampling import WeightIndexSampler

from . import collectives
from .layer.center_storage import Centers, Piece, empty_arrays
from .ops.device import rank_context
from .ops.host_memory import host_view

Index = np.ndarray | mx.nd.NDArray

# Rows that are read from a file at once.
ROWS = 1024


class MemoryBank:
    """Weight and momentum of this rank's classes, and the draw of those that take part in a step.

    Args:
        num_sample: S, the number of centers drawn a step; L or more means every center.
        num_local: L. May be 0, on the last ranks where there are more ranks than classes.
        rank: this rank.
        local_rank: this rank's number on its host, which is its GPU.
        embedding_size: E.
        prefix: folder of the center files.
        gpu: True keeps the bank where the rank computes (on the CPU where MXNet sees no GPU), False keeps
            it in host memory, for banks larger than the GPU.
        folder: keeps it in files there instead, whatever ``gpu`` says, for banks larger than the memory of which a
            step draws few centers; the rank computes where it did. The files have no names and end with the bank.
        class_start: first class of this rank. None asks the other ranks for their L (all-gather
            ``class_start``), so then every rank must make its bank.
        seed: of the initial centers and of the draw.

    Raises:
        OSError: the folder cannot be written to, or has no room for weight and momentum of all classes.

    Attributes:
        weight: (L, E) float32, from N(0, 0.01), the same for a class at any number of ranks.
        weight_mom: (L, E) float32, zero.
        centers: both, in pieces where L * E is more than one MXNet array can hold.
    """

    def __init__(
        self,
        num_sample: int,
        num_local: int,
        rank: int,
        local_rank: int,
        embedding_size: int,
        prefix: str,
        gpu: bool = True,
        *,
        folder: str | None = None,
        class_start: int | None = None,
        seed: int = 0,
    ):
        self.num_sample = num_sample
        self.num_local = num_local
        self.rank = rank
        self.embedding_size = embedding_size
        self.prefix = prefix
        self.gpu = gpu
        self.context = rank_context(local_rank) if gpu and not folder else mx.cpu()
        self.class_start = _ask_class_start(num_local, rank) if class_start is None else class_start
        self.sampler = WeightIndexSampler(num_sample, num_local, rank, self.class_start, seed)
        ranks_of_host = hvd.local_size() if hvd.is_initialized() else 1
        self.centers = Centers(num_local, embedding_size, self.context, folder, ranks_of_host)
        self.centers.initialise(self.class_start, seed)

    @property
    def weight(self) -> mx.nd.NDArray:
        """(L, E) float32, of a bank in one piece."""
        return self._only_piece().weight

    @property
    def weight_mom(self) -> mx.nd.NDArray:
        """(L, E) float32, of a bank in one piece."""
        return self._only_piece().weight_mom

    def sample(self, global_label: np.ndarray | mx.nd.NDArray) -> tuple[np.ndarray, np.ndarray]:
        """Draws the centers of a step. Replace it to draw otherwise; every positive must be in it.

        Args:
            global_label: (G,) integers.

        Returns:
            (sorted local index (S,) int64, sorted unique labels of the global batch).
        """
        labels = global_label.asnumpy() if isinstance(global_label, mx.nd.NDArray) else global_label
        return self.sampler(labels)

    def get(self, index: Index) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Weight and momentum of the rows ``index``, each (S, E), in the bank's context.

        With every row of a bank in one piece asked for, its own arrays come back and nothing is copied.
        """
        if len(index) == self.num_local and len(self.centers.pieces) == 1:
            return self.centers.pieces[0]
        index = _host_index(index)
        return self.centers.gather(index, "weight"), self.centers.gather(index, "weight_mom")

    def set(self, index: Index, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes the rows ``index`` back.

        Args:
            index: (S,) sorted local indices.
            weight, weight_mom: (S, E) float32, in any context.
        """
        piece = self.centers.pieces[0]
        if weight is not piece.weight or weight_mom is not piece.weight_mom:
            self.centers.scatter(_host_index(index), weight, weight_mom)

    def save(self) -> None:
        """Writes ``<rank>_centers.param`` and ``<rank>_centers_mom.param`` as the original does.

        Raises:
            OSError: a file could not be written; the one from before is still there.
        """
        os.makedirs(self.prefix, exist_ok=True)
        with self.centers.sequential_access(), empty_arrays(self.num_local):
            for path, field in zip(self._files(), Piece._fields):
                arrays = [host_view(getattr(piece, field)) for piece in self.centers.pieces]
                replace_file(path, array_file_chunks(arrays), collectives.report_progress)

    def load(self) -> None:
        """Reads what :meth:`save` wrote on this rank of the same number of ranks.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError: a file holds another number of classes or another embedding size.
        """
        shapes = [piece.weight.shape for piece in self.centers.pieces]
        loaded = [_load(path, shapes) for path in self._files()]
        for field, arrays in zip(Piece._fields, loaded):
            for number, rows in enumerate(arrays):
                self.centers.fill(number, field, _blocks(rows))

    def take(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Takes centers and momentum out of a checkpoint, at whatever number of ranks that was written.

        Args:
            saved: its rows, by class.
            class_map: (C,) int64, the class there of every class of this training, -1 for a new one, which keeps
                the center it starts with. None where the classes are the same.

        Raises:
            ValueError: the classes are others, or the embedding size is.
        """
        if saved.embedding_size != self.embedding_size:
            raise ValueError(
                f"it holds centers of embedding size {saved.embedding_size}, this training's is {self.embedding_size}: "
                f"set embedding_size={saved.embedding_size}"
            )
        for number, piece in enumerate(self.centers.pieces):
            start = self.class_start + number * self.centers.piece_rows
            classes = np.arange(start, start + len(piece.weight))
            wanted = classes if class_map is None else class_map[classes]
            for field in Piece._fields:
                self.centers.fill(number, field, _taken(saved, field, wanted, getattr(piece, field)))

    def _files(self) -> tuple[str, str]:
        names = ("centers", "centers_mom")
        return tuple(os.path.join(self.prefix, f"{self.rank}_{name}.param") for name in names)

    def _only_piece(self) -> Piece:
        pieces = self.centers.pieces
        if len(pieces) > 1:
            raise ValueError(
                f"the {self.num_local} centers of this rank are in {len(pieces)} pieces, because one MXNet array holds "
                f"{self.centers.piece_rows}: use centers.pieces, or get() for some of them"
            )
        return pieces[0]


def _host_index(index: Index) -> np.ndarray:
    return index.asnumpy() if isinstance(index, mx.nd.NDArray) else np.asarray(index)


def _ask_class_start(num_local: int, rank: int) -> int:
    if not hvd.is_initialized() or hvd.size() == 1:
        return rank * num_local
    sizes = hvd.allgather(mx.nd.array([num_local], dtype=np.int64), name="class_start")
    return int(sizes[:rank].asnumpy().sum()) if rank else 0


def _load(path: str, shapes: list[tuple[int, int]]) -> list[np.ndarray]:
    if not os.path.exists(path):
        raise OSError(f"no centers at {path}: this rank has not saved there")
    try:
        arrays = saved_arrays(path)
    except (OSError, ValueError) as error:
        raise OSError(f"cannot read the centers in {path}: {error}") from error
    found = [array.shape for array in arrays]
    if found != shapes:
        shown = [" and ".join(map(str, some)) for some in (found, shapes)]
        raise ValueError(f"{path} holds centers of shape {shown[0]}, this rank's are {shown[1]}: it is of another run")
    return arrays


def _taken(saved: SavedClasses, field: str, wanted: np.ndarray, own: mx.nd.NDArray) -> Iterator[tuple[int, np.ndarray]]:
    for row in range(0, len(wanted), ROWS):
        classes = wanted[row : row + ROWS]
        known = classes >= 0
        if known.all():
            yield row, saved.rows(field, classes)
        elif known.any():
            values = own[row : row + len(classes)].asnumpy()
            values[known] = saved.rows(field, classes[known])
            yield row, values


def _blocks(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((row, rows[row : row + ROWS]) for row in range(0, len(rows), ROWS))
