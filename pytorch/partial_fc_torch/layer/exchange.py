"""The three collectives of a step of the layer.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError
from partial_fc.layer.label_encoding import DIGITS, decode_labels, encode_labels

from ..collectives import all_gather_rows, reduce_scatter_rows


class GlobalBatch(NamedTuple):
    """The batches of all ranks, in rank order.

    Attributes:
        features: (G, E).
        labels: (G,) int64.
        rank_flags: (R,) int64, see RankFlags.
    """

    features: torch.Tensor
    labels: np.ndarray
    rank_flags: np.ndarray


class LayerExchange:
    """Exchanges features, statistics and gradients with the other ranks.

    Args:
        collectives: of this process.
        num_classes: C.
        embedding_size: E.
    """

    def __init__(self, collectives: Collectives, num_classes: int, embedding_size: int):
        self.collectives = collectives
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self._batch = 0  # B on which the ranks have agreed

    def gather_batch(self, features: torch.Tensor, labels, flags: int) -> GlobalBatch:
        """Gathers features, labels and flags of all ranks.

        Collectives: all-gather ``features``, (B, E + 2) -> (G, E + 2). A rank whose batch is invalid, or has another
        size than in the step before, sends NaN in this size instead. Then all ranks run the all-gather ``batch`` of
        sizes and errors; if all sizes are the same, they repeat the first one. In the first step ``batch`` comes first.

        Args:
            features: (B, E) floating point, B the same on all ranks.
            labels: (B,) or (B, 1) integers in 0..C-1, a tensor or an array.
            flags: RankFlags of this rank.

        Raises:
            JobError: on every rank: the batch sizes differ, or a rank's features or labels have wrong shapes or values.
            TypeError: on every rank, if a rank's labels are not integers.
        """
        digits, error = self._checked_digits(features, labels, flags)
        batch = features.shape[0] if features.ndim else 0
        if self._batch == 0:
            self._agree(batch, error)
        total, total_digits = self._gather(features, digits if batch == self._batch else None)
        if np.isnan(total_digits).any():
            self._agree(batch, error)
            total, total_digits = self._gather(features, digits)
        labels, rank_flags = decode_labels(total_digits, self.collectives.size)
        return GlobalBatch(total[:, : self.embedding_size], labels, rank_flags)

    def gather_statistics(self, statistics: np.ndarray, features: torch.Tensor) -> np.ndarray:
        """Gathers the softmax statistics of all ranks.

        Collectives: all-gather ``softmax_statistics``, (3, G) -> (3R, G).

        Args:
            statistics: (3, G) of this rank.
            features: whose type and device they travel in.

        Returns:
            (3R, G) in the type of the features.
        """
        with self._waiting("all-gather softmax_statistics"):
            local = torch.from_numpy(statistics).to(features)
            return all_gather_rows(local, self.collectives.size).cpu().numpy()

    def sum_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Sums the feature gradient (G, E) over the ranks and returns the rows (B, E) of this rank.

        Collectives: reduce-scatter ``feature_gradient``, (G, E) -> (B, E).
        """
        with self._waiting("reduce-scatter feature_gradient"):
            return reduce_scatter_rows(gradient, self.collectives.size)

    def _waiting(self, name: str) -> AbstractContextManager[None]:
        """As Collectives.waiting; includes the transfer to the host, because NCCL runs in the background."""
        return self.collectives.waiting(name) if self.collectives.size > 1 else nullcontext()

    def _checked_digits(self, features, labels, flags: int) -> tuple[np.ndarray | None, Exception | None]:
        """(labels and flags (B, 2) float32, None), or (None, error)."""
        try:
            return encode_labels(_integer_labels(features, labels, self.embedding_size), self.num_classes, flags), None
        except (TypeError, ValueError) as error:
            return None, error

    def _gather(self, features: torch.Tensor, digits: np.ndarray | None) -> tuple[torch.Tensor, np.ndarray]:
        """Gathers features and digits: ((G, E + 2), digits (G, 2) on the host); NaN from a rank without digits."""
        packed = features.new_full((self._batch, self.embedding_size + DIGITS), np.nan)
        if digits is not None:
            packed[:, : self.embedding_size] = features
            packed[:, self.embedding_size :] = torch.from_numpy(digits)
        with self._waiting("all-gather features"):
            total = all_gather_rows(packed, self.collectives.size)
            return total, total[:, self.embedding_size :].cpu().numpy()

    def _agree(self, batch: int, error: Exception | None) -> None:
        """Agrees with the other ranks on the batch size, or raises the same error on all of them."""
        batches, errors = zip(*self.collectives.gather_object("batch", (batch, error)))
        failed = [rank for rank, each in enumerate(errors) if each is not None]
        if failed:
            where = "" if len(failed) == len(errors) else f" (rank {failed[0]} of {len(errors)})"
            first = errors[failed[0]]
            raise (TypeError if isinstance(first, TypeError) else JobError)(f"{first}{where}")
        if len(set(batches)) > 1:
            raise JobError(f"the ranks' batch sizes are {list(batches)}: all must be the same in a step")
        self._batch = batch


def _integer_labels(features: torch.Tensor, labels, embedding_size: int) -> np.ndarray:
    """The labels (B,) int64 of a batch whose shapes and types are valid."""
    labels = torch.as_tensor(labels)
    if features.ndim != 2 or features.shape[1] != embedding_size or not len(features):
        raise ValueError(
            f"the embeddings have shape {tuple(features.shape)}, expected (B, {embedding_size}) with B above 0: the "
            "backbone and the layer must have the same embedding_size"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"the labels are of type {labels.dtype}, expected integers: int64 holds all of them exactly")
    if labels.shape not in ((len(features),), (len(features), 1)):
        raise ValueError(f"the labels have shape {tuple(labels.shape)}, expected ({len(features)},), one per embedding")
    return labels.reshape(-1).cpu().numpy().astype(np.int64, copy=False)
