"""The memory bank: the class centers of one rank and their momentum.

Shapes: L classes of this rank, S sampled classes of this rank, E embedding, G global batch.
"""

from __future__ import annotations

import contextlib
import os
from typing import Union

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.centers import center_blocks
from partial_fc.sampling import WeightIndexSampler

from .context import rank_context
from .errors import sentence

# Standard MXNet wheels index an array with 32 bits.
MAX_ELEMENTS = 2**31 - 1

Index = Union[np.ndarray, mx.nd.NDArray]


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
        class_start: first class of this rank. None asks the other ranks for their L (all-gather
            ``class_start``), so then every rank must make its bank.
        seed: of the initial centers and of the draw.

    Attributes:
        weight: (L, E) float32, from N(0, 0.01), the same for a class at any number of ranks.
        weight_mom: (L, E) float32, zero.

    Raises:
        ValueError: L * E is more than one MXNet array can hold.
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
        class_start: int | None = None,
        seed: int = 0,
    ):
        check_shard_size(num_local, embedding_size)
        self.num_sample = num_sample
        self.num_local = num_local
        self.rank = rank
        self.embedding_size = embedding_size
        self.prefix = prefix
        self.gpu = gpu
        self.context = rank_context(local_rank) if gpu else mx.cpu()
        self.class_start = _ask_class_start(num_local, rank) if class_start is None else class_start
        self.sampler = WeightIndexSampler(num_sample, num_local, rank, self.class_start, seed)
        with _empty_arrays(num_local):
            self.weight = mx.nd.zeros((num_local, embedding_size), ctx=self.context)
            self.weight_mom = mx.nd.zeros((num_local, embedding_size), ctx=self.context)
        # Block by block: a second copy of a shard may not fit into the host's memory.
        for row, centers in center_blocks(self.class_start, self.class_start + num_local, embedding_size, seed):
            self.weight[row : row + len(centers)] = centers

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

        With every row asked for, the bank's own arrays come back and nothing is copied.
        """
        if len(index) == self.num_local:
            return self.weight, self.weight_mom
        rows = self._rows(index)
        return mx.nd.take(self.weight, rows), mx.nd.take(self.weight_mom, rows)

    def set(self, index: Index, weight: mx.nd.NDArray, weight_mom: mx.nd.NDArray) -> None:
        """Writes the rows ``index`` back.

        Args:
            index: (S,) sorted local indices.
            weight, weight_mom: (S, E) float32, in any context.
        """
        for bank, rows in ((self.weight, weight), (self.weight_mom, weight_mom)):
            if rows is bank:
                continue
            rows = rows.as_in_context(self.context)
            if len(index) == self.num_local:
                rows.copyto(bank)
            else:
                bank[self._rows(index)] = rows

    def save(self) -> None:
        """Writes ``<rank>_centers.param`` and ``<rank>_centers_mom.param`` as the original does.

        Raises:
            OSError: a file could not be written; the one from before is still there.
        """
        os.makedirs(self.prefix, exist_ok=True)
        for path, array in zip(self._files(), (self.weight, self.weight_mom)):
            _save(path, array)

    def load(self) -> None:
        """Reads what :meth:`save` wrote on this rank of the same number of ranks.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError: a file holds another number of classes or another embedding size.
        """
        shape = (self.num_local, self.embedding_size)
        weight, weight_mom = (_load(path, shape).as_in_context(self.context) for path in self._files())
        self.weight, self.weight_mom = weight, weight_mom

    def _files(self) -> tuple[str, str]:
        names = ("centers", "centers_mom")
        return tuple(os.path.join(self.prefix, f"{self.rank}_{name}.param") for name in names)

    def _rows(self, index: Index) -> mx.nd.NDArray:
        if isinstance(index, mx.nd.NDArray):
            return index.as_in_context(self.context)
        return mx.nd.array(index, ctx=self.context, dtype=np.int64)


def check_shard_size(num_local: int, embedding_size: int) -> None:
    """Refuses a shard that one MXNet array cannot hold, before anything is allocated.

    Raises:
        ValueError: L * E is over 2^31 - 1.
    """
    if num_local * embedding_size > MAX_ELEMENTS:
        raise ValueError(
            f"{num_local} classes x {embedding_size} on one rank are {num_local * embedding_size} elements, more than "
            f"the {MAX_ELEMENTS} one array of the MXNet wheels holds: start more ranks, at most "
            f"{MAX_ELEMENTS // embedding_size} classes fit on each"
        )


def _ask_class_start(num_local: int, rank: int) -> int:
    if not hvd.is_initialized() or hvd.size() == 1:
        return rank * num_local
    sizes = hvd.allgather(mx.nd.array([num_local], dtype=np.int64), name="class_start")
    return int(sizes[:rank].asnumpy().sum()) if rank else 0


def _empty_arrays(rows: int):
    """Lets MXNet have arrays of no rows where a rank holds no class; it logs a warning, so only there."""
    return contextlib.nullcontext() if rows else mx.util.np_shape(True)


def _save(path: str, array: mx.nd.NDArray) -> None:
    aside = path + ".writing"
    try:
        with _empty_arrays(array.shape[0]):
            mx.nd.save(aside, [array])
        os.replace(aside, path)
    except (mx.base.MXNetError, OSError) as error:
        raise OSError(f"cannot write the centers to {path}: {sentence(error)}") from error


def _load(path: str, shape: tuple[int, int]) -> mx.nd.NDArray:
    if not os.path.exists(path):
        raise OSError(f"no centers at {path}: this rank has not saved there")
    try:
        with _empty_arrays(shape[0]):
            (array,) = mx.nd.load(path)
    except (mx.base.MXNetError, ValueError) as error:
        raise OSError(f"cannot read the centers in {path}: {sentence(error)}") from error
    if array.shape != shape:
        raise ValueError(f"{path} holds centers of shape {array.shape}, this rank's are {shape}: it is of another run")
    return array
