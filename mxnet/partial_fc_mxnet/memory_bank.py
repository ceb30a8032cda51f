"""The memory bank: the class centers of one rank and their momentum.

Shapes: L classes of this rank, S sampled classes of this rank, E embedding, G global batch.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeAlias

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.checkpoint import SavedClasses, replace_file
from partial_fc.checkpoint.class_centers import ORIGINAL_FILES
from partial_fc.checkpoint.mxnet_params import array_file_chunks, saved_arrays
from partial_fc.layer.bank_files import consecutive
from partial_fc.layer.sampling import NOTHING_TO_CORRECT, WeightIndexSampler
from partial_fc.layer.sharding import num_sampled

from .collectives import default_collectives
from .layer.center_storage import CenterStorage, Piece, empty_arrays
from .ops.memory import host_view, rank_context

Index: TypeAlias = np.ndarray | mx.nd.NDArray

# Rows that are read from a file at a time.
ROWS = 1024


class MemoryBank:
    """Weight and momentum of this rank's classes, and the sampler of the classes of a step.

    Args:
        num_sample: S, the number of centers sampled per step; L or more selects every center, 0 only the positives.
        num_local: L. It is 0 on the last ranks if there are more ranks than classes.
        rank: this rank.
        local_rank: index of this rank on its host, which is its GPU.
        embedding_size: E.
        prefix: folder of the center files.
        gpu: True keeps the bank on the device that computes (the CPU if MXNet finds no GPU); False keeps it in host
            memory, for banks larger than GPU memory.
        folder: keeps the bank in files in this folder, for banks larger than host memory with a small sample ratio;
            overrides ``gpu``, but does not change the device that computes. The files have no names and are deleted
            when the process ends.
        class_start: first class of this rank. None derives it from the L of all ranks (collective: all-gather
            ``class_start``), so every rank has to create its bank.
        seed: seeds the initial centers and the sampler.
        sampling_correction: weights each sampled negative by 1 / its probability, which makes the sum over the
            negatives unbiased, see log_weights in partial_fc/layer/sampling.py.

    Attributes:
        weight: (L, E) float32, normal with standard deviation 0.01; it depends on seed and class, not on the number of
            ranks.
        weight_mom: (L, E) float32, zero.
        centers: CenterStorage with both; in several pieces if L * E exceeds the size of one MXNet array.

    Raises:
        OSError: the folder is not writable, or has too little space for weight and momentum of all classes.
        ValueError: ``sampling_correction`` without sampled negatives.
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
        sampling_correction: bool = False,
    ):
        if sampling_correction and num_sample == 0 and num_local > 0:
            raise ValueError(NOTHING_TO_CORRECT)
        self.num_local = num_local
        self.rank = rank
        self.embedding_size = embedding_size
        self.prefix = prefix
        self.gpu = gpu
        self.context = rank_context(local_rank) if gpu and not folder else mx.cpu()
        self.class_start = _gather_class_start(num_local, rank) if class_start is None else class_start
        self.sampler = WeightIndexSampler(num_sample, num_local, rank, self.class_start, seed)
        self.requires_positives = True
        self.sampling_correction = sampling_correction
        local_size = hvd.local_size() if hvd.is_initialized() else 1
        self.centers = CenterStorage(num_local, embedding_size, self.context, folder, local_size)
        self.centers.initialize(self.class_start, seed)

    @property
    def num_sample(self) -> int:
        """S of the next step."""
        return self.sampler.num_sample

    def set_sample_ratio(self, ratio: float) -> None:
        """Sets the fraction of the centers that the next steps sample, see CenterBank.set_sample_ratio."""
        if self.sampling_correction and ratio == 0:
            raise ValueError(NOTHING_TO_CORRECT)
        self.sampler.resize(num_sampled(self.num_local, ratio))

    @property
    def weight(self) -> mx.nd.NDArray:
        """(L, E) float32; raises ValueError if the bank has several pieces."""
        return self._only_piece().weight

    @property
    def weight_mom(self) -> mx.nd.NDArray:
        """(L, E) float32; raises ValueError if the bank has several pieces."""
        return self._only_piece().weight_mom

    def sample(self, global_label: np.ndarray | mx.nd.NDArray) -> tuple[np.ndarray, np.ndarray]:
        """Samples the centers of a step. Users may replace this method.

        The sample must contain every positive, unless ``requires_positives`` is False: then rows without their positive
        have no loss and no gradient, but still count in the mean over the G rows.

        Returns:
            (sorted local index (S,) int64, sorted unique labels of the global batch (G,)).
        """
        labels = global_label.asnumpy() if isinstance(global_label, mx.nd.NDArray) else global_label
        return self.sampler(labels)

    def prefetch(self) -> None:
        """Draws the classes of the next step and starts to read their rows while the backbone computes."""
        if self.sampler.num_sample < self.num_local:
            self.centers.prefetch(self.sampler.prefetch())

    def get(self, index: Index) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Returns weight and momentum of the rows ``index`` (S,), each (S, E), in the bank's context.

        Returns copies, unless ``index`` has all rows and the bank has a single piece: then the bank's own arrays.
        """
        if len(index) == self.num_local and len(self.centers.pieces) == 1:
            return self.centers.pieces[0]
        index = _host_index(index)
        return self.centers.gather(index, "weight"), self.centers.gather(index, "weight_mom")

    def set(self, index: Index, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes weight and momentum (S, E) float32, in any context, to the rows of a sorted ``index`` (S,)."""
        piece = self.centers.pieces[0]
        if weight is not piece.weight or weight_mom is not piece.weight_mom:
            self.centers.scatter(_host_index(index), weight, weight_mom)

    @property
    def widths(self) -> dict[str, int]:
        """Numbers per class of each field, weight and momentum."""
        return self.centers.widths

    @property
    def nbytes(self) -> int:
        """Bytes of weight and momentum."""
        return 4 * self.num_local * sum(self.widths.values())

    @property
    def in_files(self) -> bool:
        """Whether the bank is in files instead of memory."""
        return bool(self.centers.files)

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context for reading all rows from the first to the last."""
        return self.centers.files.sequential_access() if self.centers.files else nullcontext()

    def host_rows(self, field: str, copied: bool) -> list[np.ndarray]:
        """Returns "weight" or "weight_mom" on the host, (rows, E) for each piece; see CenterBank.host_rows."""
        read = mx.nd.NDArray.asnumpy if copied else host_view
        with empty_arrays(self.num_local):
            return [read(getattr(piece, field)) for piece in self.centers.pieces]

    def save(self, with_momentum: bool = True) -> None:
        """Writes ``<rank>_centers.param`` and ``<rank>_centers_mom.param`` in the format of the original trainer.

        ``with_momentum=False`` writes only the centers, because the original's momentum sums steps, not gradients.
        Raises OSError if a file cannot be written; the previous file is unchanged.
        """
        os.makedirs(self.prefix, exist_ok=True)
        with self.sequential_access():
            for path, field in zip(self._files(), Piece._fields if with_momentum else ("weight",)):
                content = array_file_chunks(self.host_rows(field, copied=False))
                replace_file(path, content, default_collectives.report_progress)

    def load(self) -> None:
        """Reads the files that `save` wrote on this rank with the same number of ranks.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError: a file has a different number of classes or embedding size.
        """
        shapes = [piece.weight.shape for piece in self.centers.pieces]
        loaded = [_load(path, shapes) for path in self._files()]
        for field, arrays in zip(Piece._fields, loaded):
            for number, rows in enumerate(arrays):
                blocks = ((row, rows[row : row + ROWS]) for row in range(0, len(rows), ROWS))
                self.centers.copy_rows(number, field, blocks)

    def load_classes(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Loads centers and, if saved, momentum, from any number of ranks; see CenterBank.load_classes."""
        saved.require_widths(self.widths)
        for number, piece in enumerate(self.centers.pieces):
            start = self.class_start + number * self.centers.piece_rows
            classes = np.arange(start, start + len(piece.weight))
            saved_classes = classes if class_map is None else class_map[classes]
            for field in saved.widths:
                rows = getattr(piece, field)
                self.centers.copy_rows(number, field, saved.blocks(field, saved_classes, partial(_copied, rows)))

    def set_centers(self, rows: np.ndarray, centers: np.ndarray) -> None:
        """Sets some centers, see CenterBank.set_centers."""
        for number, piece in enumerate(self.centers.pieces):
            first = number * self.centers.piece_rows
            in_piece = (rows >= first) & (rows < first + len(piece.weight))
            self.centers.copy_rows(number, "weight", consecutive(rows[in_piece] - first, centers[in_piece]))

    def _files(self) -> list[str]:
        return [os.path.join(self.prefix, name.format(self.rank)) for name in ORIGINAL_FILES]

    def _only_piece(self) -> Piece:
        pieces = self.centers.pieces
        if len(pieces) > 1:
            raise ValueError(
                f"the {self.num_local} centers of this rank are in {len(pieces)} pieces, because an MXNet array holds "
                f"at most {self.centers.piece_rows} of them: use centers.pieces, or get() for selected rows"
            )
        return pieces[0]


def _host_index(index: Index) -> np.ndarray:
    return index.asnumpy() if isinstance(index, mx.nd.NDArray) else np.asarray(index)


def _gather_class_start(num_local: int, rank: int) -> int:
    if not hvd.is_initialized() or hvd.size() == 1:
        return rank * num_local
    sizes = hvd.allgather(mx.nd.array([num_local], dtype=np.int64), name="class_start")
    return int(sizes[:rank].asnumpy().sum()) if rank else 0


def _load(path: str, shapes: list[tuple[int, int]]) -> list[np.ndarray]:
    if not os.path.exists(path):
        raise OSError(f"no centers at {path}: this rank has not saved there; check prefix and the number of ranks")
    try:
        arrays = saved_arrays(path)
    except (OSError, ValueError) as error:
        raise OSError(f"cannot read the centers in {path}: {error}") from error
    saved_shapes = [array.shape for array in arrays]
    if saved_shapes != shapes:
        actual, expected = (" and ".join(map(str, each)) for each in (saved_shapes, shapes))
        raise ValueError(
            f"{path} holds centers of shape {actual}, expected {expected}: load centers that the same number of ranks "
            "saved for the same classes and embedding_size"
        )
    return arrays


def _copied(rows: mx.nd.NDArray, part: slice) -> np.ndarray:
    return rows[part].asnumpy()
