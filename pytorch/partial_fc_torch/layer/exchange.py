"""The collectives of a step of the layer.

Shapes: B local batch, R ranks, G = B*R global batch, P labels of an item, E embedding, C classes, W
statistics of a row.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError
from partial_fc.layer.label_encoding import DIGITS, RankFlags, check_labels, decode_labels, encode_labels
from partial_fc.layer.nonfinite import nonfinite_loss
from partial_fc.layer.softmax import missing_positives

from ..collectives import all_gather_rows, reduce_scatter_rows
from .rows import HostCopy, to_device

NO_LABEL = -1
REFUSED = -2  # replaces labels that are out of range


class GlobalBatch(NamedTuple):
    """The batches of all ranks, in rank order, on the device."""

    features: torch.Tensor  # (G, E)
    digits: torch.Tensor  # (G, 2P) labels and flags, see label_encoding, in the type of the features
    labels: torch.Tensor  # (G, P) int64; NO_LABEL or below where there is none


class LayerExchange:
    """Exchanges features, statistics and gradients with the other ranks.

    The host waits for the device only in `checked_loss`, which also validates the batch.

    Attributes:
        rank_flags: RankFlags of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
        agreed: (B, P) of the batches, once the ranks have agreed on it.
        refusal: why this rank refuses the next batch; None if it does not, see UpdateLabels.
    """

    def __init__(self, collectives: Collectives, num_classes: int, embedding_size: int):
        self.collectives, self.rank, self.size = collectives, collectives.rank, collectives.size
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.rank_flags = RankFlags(0)
        self.all_rank_flags = np.zeros(self.size, np.int64)
        self.agreed: tuple[int, int] | None = None
        self.refusal: ValueError | None = None

    def gather_batch(self, features: torch.Tensor, labels) -> GlobalBatch:
        """Gathers features, labels and flags of all ranks.

        Collectives: all-gather ``features``, (B, E + 2P) -> (G, E + 2P). A rank whose batch is invalid, or differs in
        shape from the previous step, sends NaN in the previous shape. The first step calls `agree_on_batch` first.

        Args:
            features: (B, E) floating point, B the same on all ranks.
            labels: (B,) or (B, P) integers in 0..C-1, or NO_LABEL; a tensor or an array.

        Raises:
            JobError, TypeError: see `agree_on_batch`.
        """
        if self.agreed is None:
            self.agree_on_batch(features, labels)
        batch, count = self.agreed or (0, 0)
        packed = features.new_full((batch, self.embedding_size + DIGITS * count), np.nan)
        if (
            self.refusal is None
            and self._misfit(features, labels) is None
            and (len(features), labels_per_item(labels)) == self.agreed
        ):
            packed[:, : self.embedding_size] = features
            packed[:, self.embedding_size :] = self._digits(labels, features)
        with self.waiting("all-gather features"):
            total = all_gather_rows(packed, self.size)
        digits = total[:, self.embedding_size :]
        # float32 represents all digits exactly. NaN becomes NO_LABEL, until `checked_loss` finds it.
        gathered, _ = _decoded(torch.nan_to_num(digits, nan=0.0).long(), self.size)
        return GlobalBatch(total[:, : self.embedding_size], digits, gathered)

    def agree_on_batch(self, features: torch.Tensor, labels) -> None:
        """Agrees with the other ranks on the shape of the batch, and on the sizes of the layer.

        Collectives: all-gather ``batch`` of shapes and errors.

        Raises:
            JobError: On every rank: the shapes or sizes differ, or a rank's features or labels have wrong shapes or
                values.
            TypeError: On every rank, if a rank's labels are not integers.
        """
        error = self._error(features, labels)
        shape = (0, 0) if error else (len(features), labels_per_item(labels))
        batch, count, *_ = self.agree("batch", (*shape, self.num_classes, self.embedding_size), error)
        self.agreed = batch, count

    def agree(self, name: str, shape: tuple[int, ...], error: Exception | None) -> tuple[int, ...]:
        """Returns the numbers named below, which all ranks have; otherwise raises the same error on all."""
        shapes, errors = zip(*self.collectives.gather_object(name, (shape, error)))
        failed = [rank for rank, each in enumerate(errors) if each is not None]
        if failed:
            where = "" if len(failed) == len(errors) else f" (rank {failed[0]} of {len(errors)})"
            first = errors[failed[0]]
            raise (TypeError if isinstance(first, TypeError) else JobError)(f"{first}{where}")
        nouns = "batch sizes", "numbers of labels per item", "values of num_classes", "values of embedding_size"
        for noun, values in zip(nouns, zip(*shapes)):
            if len(set(values)) > 1:
                raise JobError(f"the ranks' {noun} are {list(values)}: all must be the same in a step")
        return shape

    def gather_statistics(self, statistics: torch.Tensor) -> torch.Tensor:
        """Returns the statistics of all ranks (R, W, G) float64 on the device, given those of this rank (W, G).

        Collectives: all-gather ``softmax_statistics``, (W, G) -> (RW, G).
        """
        with self.waiting("all-gather softmax_statistics"):
            gathered = all_gather_rows(statistics, self.size)
        return gathered.view(self.size, *statistics.shape).double()

    def begin_check(
        self, batch: GlobalBatch, losses: torch.Tensor, missing: torch.Tensor, borders: torch.Tensor | None
    ) -> HostCopy:
        """Starts to copy what `checked_loss` needs to the host.

        Args:
            batch: result of `gather_batch`.
            losses: (G,) float64.
            missing: (G, P) bool, labels whose missing center is an error.
            borders: (n,) integers that the backward pass needs on the host; None if it needs none.
        """
        parts = [losses, batch.digits, missing] + ([] if borders is None else [borders])
        return HostCopy(torch.cat([each.double().flatten() for each in parts]))

    def checked_loss(
        self, check: HostCopy, batch: GlobalBatch, statistics: torch.Tensor, num_update: int
    ) -> tuple[float | None, list[int]]:
        """Waits for the losses on the host, validates the step, and returns its mean loss over the global batch.

        All ranks compute the same bits, so all of them raise the same errors.

        Args:
            check: result of `begin_check`.
            batch: result of `gather_batch`.
            statistics: result of `gather_statistics`.
            num_update: number of this step, for the error message.

        Returns:
            The loss, None if a rank's batch is invalid or has another shape, in which case all ranks must call
            `agree_on_batch`; and the borders.

        Raises:
            MissingPositiveError, FloatingPointError: On every rank, see StepComputation.forward.
        """
        with self.waiting("all-gather softmax_statistics"):
            values = check.wait().numpy()
        rows, per_item = batch.labels.shape
        sizes = rows, rows * DIGITS * per_item, rows * per_item
        losses, digits, missing, borders = np.split(values, np.cumsum(sizes))
        if np.isnan(digits).any():
            return None, []
        labels, self.all_rank_flags = _decoded(digits.astype(np.int64).reshape(rows, -1), self.size)
        if missing.any():
            row, column = np.argwhere(missing.reshape(labels.shape))[0]
            raise missing_positives(int(missing.sum()), labels.size, labels[row, column], row)
        loss = float(np.mean(losses))
        if not math.isfinite(loss):
            raise nonfinite_loss(loss, num_update, batch.features.cpu().numpy(), statistics.cpu().numpy())
        return loss, borders.astype(np.int64).tolist()

    def gather_targets(self, cosines: torch.Tensor) -> torch.Tensor:
        """Combines the labels' cosines (G, P), which are -inf where another rank has the center, on every rank.

        Collectives: all-gather ``targets``, (1, G, P) -> (R, G, P).
        """
        with self.waiting("all-gather targets"):
            return all_gather_rows(cosines[None], self.size).amax(dim=0)

    def gather_hardest(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns Targets.hardest (G,), given the k + 1 largest logits of the negatives on this rank (k + 1, G).

        Collectives: all-gather ``hardest``, (k + 1, G) -> (R(k + 1), G).
        """
        with self.waiting("all-gather hardest"):
            gathered = all_gather_rows(logits, self.size)
        return gathered.topk(len(logits), dim=0).values[-2:].mean(dim=0)

    def to_host(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns labels on the host; waits for the GPU, and so for the ranks that send them."""
        if labels.device.type == "cpu":
            return labels
        with self.waiting("all-gather features"):
            return labels.cpu()

    def sum_gradient(self, gradient: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the feature gradient (G, E) over the ranks.

        Collectives: reduce-scatter ``feature_gradient``, (G, E) -> (B, E).

        Returns:
            A function that waits for the rows (B, E) of this rank and returns them.
        """
        result = reduce_scatter_rows(gradient, self.size)

        def wait() -> torch.Tensor:
            with self.waiting("reduce-scatter feature_gradient"):
                return result()

        return wait

    def waiting(self, name: str) -> AbstractContextManager[None]:
        """See Collectives.waiting. NCCL runs in the background, so it is the copy to the host that waits for ranks."""
        return self.collectives.waiting(name) if self.size > 1 else nullcontext()

    def clean(self, labels, device: torch.device) -> torch.Tensor:
        """Returns labels (B, P) int64 on the device: REFUSED where out of range, NO_LABEL where repeated in a row."""
        local = to_device(labels, device).long()
        local = local.reshape(len(local), -1)
        local = torch.where((local >= NO_LABEL) & (local < self.num_classes), local, REFUSED)
        for column in range(1, local.shape[1]):
            repeated = (local[:, :column] == local[:, column : column + 1]).any(dim=1)
            local[:, column] = torch.where(repeated & (local[:, column] >= 0), NO_LABEL, local[:, column])
        return local

    def _digits(self, labels, features: torch.Tensor) -> torch.Tensor:
        """Returns labels and flags (B, 2P) in the type of the features; NaN for a label that is out of range."""
        labels = self.clean(labels, features.device)
        # NO_LABEL is sent as 0.
        digits = encode_labels(labels.flatten() + 1, self.rank_flags, torch).view(*labels.shape, DIGITS)
        return torch.where((labels != REFUSED)[..., None], digits.to(features.dtype), np.nan).flatten(1)

    def _misfit(self, features: torch.Tensor, labels) -> Exception | None:
        """Returns the error of shapes or types, which the host finds without waiting for the device; None if valid."""
        try:
            labels = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            return TypeError(f"the labels cannot become a tensor: {error}")
        if features.ndim > 2:
            return ValueError(
                f"the embeddings have shape {tuple(features.shape)}, expected (B, {self.embedding_size}): flatten them"
            )
        if features.ndim != 2 or features.shape[1] != self.embedding_size or not len(features):
            return ValueError(
                f"the embeddings have shape {tuple(features.shape)}, expected (B, {self.embedding_size}) with B above "
                "0: the backbone and the layer must have the same embedding_size"
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            return TypeError(
                f"the labels are of type {labels.dtype}, expected integers: int64 holds all of them exactly"
            )
        if labels.ndim not in (1, 2) or len(labels) != len(features) or not labels.numel():
            return ValueError(
                f"the labels have shape {tuple(labels.shape)}, expected ({len(features)},), one per embedding, or "
                f"({len(features)}, P) for several"
            )
        return None

    def _error(self, features: torch.Tensor, labels) -> Exception | None:
        """Returns the error of a batch; None if it is valid."""
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None  # only once
            return refusal
        misfit = self._misfit(features, labels)
        try:
            if misfit is None:
                values = torch.as_tensor(labels).reshape(-1).cpu().numpy()
                check_labels(values[values != NO_LABEL], self.num_classes)
        except ValueError as error:
            return error
        return misfit


def labels_per_item(labels) -> int:
    """Returns P, given labels (B,) or (B, P)."""
    return 1 if np.ndim(labels) < 2 else np.shape(labels)[1]


def _decoded(digits, ranks: int):
    """Decodes digits (G, 2P) int64 of all ranks: labels (G, P) and RankFlags (R,), both int64."""
    labels, flags = decode_labels(digits.reshape(-1, DIGITS), ranks)
    return labels.reshape(len(digits), -1) - 1, flags
