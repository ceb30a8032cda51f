"""The collectives of a step of the layer.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes.
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
from partial_fc.layer.softmax import combine_statistics, global_log_sum_exp

from ..collectives import all_gather_rows, reduce_scatter_rows
from .device import HostCopy, to_device

OTHER_SIZE = -2  # replaces the labels of a batch of another size; labels are 0 or more, invalid ones are -1


class GlobalBatch(NamedTuple):
    """The batches of all ranks, in rank order, on the device."""

    features: torch.Tensor  # (G, E)
    digits: torch.Tensor  # (G, 2) labels and flags, see label_encoding, in the type of the features
    labels: torch.Tensor  # (G,) int64; out of range if the batch is one that LayerExchange.agree refuses


class GlobalStatistics(NamedTuple):
    """The softmax statistics of a step, which all ranks have after its forward pass.

    The device combines the statistics itself, so its backward pass need not wait for the host. The host only validates
    them. The host has the same bits on every rank, so all ranks raise the same errors; one copy contains all data.
    """

    batch: GlobalBatch  # from LayerExchange.gather_batch
    log_sum_exp: torch.Tensor  # (G,) float64 on the device, see global_log_sum_exp
    host_copy: HostCopy  # 3RG softmax statistics in rank order and 2G digits of the batch, in the type of the features


class LayerExchange:
    """Exchanges features, statistics and gradients with the other ranks.

    The host waits for the device only in mean_loss, which also validates the batch.

    Attributes:
        rank_flags: RankFlags of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
    """

    def __init__(self, collectives: Collectives, num_classes: int, embedding_size: int):
        self.collectives = collectives
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.rank_flags = RankFlags(0)
        self.all_rank_flags = np.zeros(collectives.size, np.int64)
        self._batch = 0  # the agreed B of gather_batch
        self._labels = 0  # the agreed B of gather_labels
        self._refused: ValueError | None = None  # why gather_labels did not send this rank's labels

    def gather_batch(self, features: torch.Tensor, labels) -> GlobalBatch:
        """Gathers features, labels and flags of all ranks.

        Collectives: all-gather ``features``, (B, E + 2) -> (G, E + 2). A rank whose batch is invalid, or differs in
        size from the previous step, sends NaN in the previous size. The first step calls `agree` first.

        Args:
            features: (B, E) floating point, B the same on all ranks.
            labels: (B,) or (B, 1) integers in 0..C-1, a tensor or an array.

        Raises:
            JobError, TypeError: see `agree`.
        """
        if self._batch == 0:
            self.agree(features, labels)
        packed = features.new_full((self._batch, self.embedding_size + DIGITS), np.nan)
        if self._refused is None and self._misfit(features, labels) is None and len(features) == self._batch:
            packed[:, : self.embedding_size] = features
            packed[:, self.embedding_size :] = self._digits(features, labels)
        with self._waiting("all-gather features"):
            total = all_gather_rows(packed, self.collectives.size)
        digits = total[:, self.embedding_size :]
        # float32 represents all digits exactly. A digit of -1 yields a label out of range.
        gathered, _ = decode_labels(torch.nan_to_num(digits, nan=-1.0).long(), self.collectives.size)
        return GlobalBatch(total[:, : self.embedding_size], digits, gathered)

    def gather_labels(self, labels, count: int, device: torch.device) -> torch.Tensor:
        """Gathers the labels of all ranks: (R, B) int64 on the device, negative where they are not in 0..C-1.

        Collectives: all-gather ``labels``, (1, B) -> (R, B). A rank whose B differs from the previous call sends
        OTHER_SIZE in the previous size. In the first call, and if B has changed on all ranks, also gathers
        ``status.micro_batches`` and ``micro_batches.sizes``. If B has changed on some ranks only, the next step raises
        an error on all of them: until then the other ranks do not know, and may run collectives in their backbone.

        Args:
            labels: (B,) or (B, 1) integers.
            count: number of micro-batches into which the labels are divided.
            device: the result's device.

        Raises:
            JobError: On every rank, if B is not a multiple of ``count``.
            ValueError: On every rank, if B differs between ranks in the first call or after it has changed on all.
        """
        if self._labels == 0:
            self.agree_on_labels(len(labels), count)
        self._refused = None
        gathered = self._gather_labels(labels, device)
        if len(labels) == self._labels:
            return gathered
        with self._waiting("all-gather labels"):
            changed_on_all = bool((gathered == OTHER_SIZE).all())
        if changed_on_all:
            self.agree_on_labels(len(labels), count)
            return self._gather_labels(labels, device)
        self._refused = ValueError(
            f"the ranks had {self._labels} items each in the previous update, but one has {len(labels)} now: give all "
            "ranks the same number"
        )
        return gathered

    def _gather_labels(self, labels, device: torch.device) -> torch.Tensor:
        local = torch.full((1, self._labels), OTHER_SIZE, device=device)
        if len(labels) == self._labels:
            local = to_device(labels, device).reshape(1, -1).long()
            local = torch.where((local >= 0) & (local < self.num_classes), local, -1)
        with self._waiting("all-gather labels"):
            return all_gather_rows(local, self.collectives.size)

    def agree_on_labels(self, number: int, count: int) -> None:
        """Checks that all ranks have the same number of labels, see `gather_labels`."""

        def check() -> None:
            if number == 0 or number % count:
                raise ValueError(f"{number} items cannot be divided into gradient_acc={count} equal micro-batches")

        self.collectives.run_on_all_ranks("micro_batches", check)
        numbers = self.collectives.gather_object("micro_batches.sizes", number)
        if len(set(numbers)) > 1:
            raise ValueError(f"the ranks have {numbers} items in an update: give all ranks the same number")
        self._labels = number
        if self._batch:  # otherwise the first step will agree on it
            self._batch = number // count

    def gather_statistics(self, statistics: torch.Tensor, batch: GlobalBatch) -> GlobalStatistics:
        """Gathers the softmax statistics of all ranks, and starts to copy them to the host.

        Collectives: all-gather ``softmax_statistics``, (3, G) -> (3R, G).
        """
        size = self.collectives.size
        with self._waiting("all-gather softmax_statistics"):
            gathered = all_gather_rows(statistics.to(batch.features.dtype), size)
            host_copy = HostCopy(torch.cat([gathered.flatten(), batch.digits.flatten()]))
        values = gathered.view(size, 3, -1).double()
        if gathered.device.type != "cpu":
            return GlobalStatistics(batch, global_log_sum_exp(values, torch), host_copy)
        with np.errstate(invalid="ignore"):  # mean_loss reports invalid batches
            # NumPy's exponentials, as in MXNet's trainer; PyTorch's differ in the last bit.
            log_sum_exp = global_log_sum_exp(values.numpy())
        return GlobalStatistics(batch, torch.from_numpy(log_sum_exp), host_copy)

    def mean_loss(self, gathered: GlobalStatistics, requires_positives: bool, num_update: int) -> float | None:
        """Waits for the statistics on the host, validates them, and returns the mean loss over the global batch.

        Args:
            gathered: result of `gather_statistics`.
            requires_positives: see combine_statistics.
            num_update: number of this step, for the error message.

        Returns:
            The loss; None if a rank's batch is invalid or has another size, in which case all ranks must call `agree`.

        Raises:
            MissingPositiveError, FloatingPointError: On every rank, see MarginSoftmax.forward.
        """
        size = self.collectives.size
        with self._waiting("all-gather softmax_statistics"):
            values = gathered.host_copy.wait().numpy()
        statistics, digits = np.split(values, [len(values) - gathered.batch.digits.numel()])
        if np.isnan(digits).any():
            return None
        labels, self.all_rank_flags = decode_labels(digits.reshape(-1, DIGITS).astype(np.int64), size)
        statistics = statistics.reshape(size, 3, -1)
        loss = combine_statistics(statistics, labels, requires_positives).loss
        if not math.isfinite(loss):
            raise nonfinite_loss(loss, num_update, gathered.batch.features.cpu().numpy(), statistics)
        return loss

    def gather_targets(self, cosine: torch.Tensor) -> torch.Tensor:
        """Combines the targets' cosines (G,), which are -inf where another rank has the center: (G,) on every rank.

        Collectives: all-gather ``targets``, (1, G) -> (R, G).
        """
        with self._waiting("all-gather targets"):
            return all_gather_rows(cosine[None], self.collectives.size).amax(dim=0)

    def to_host(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns the labels (G,) on the host; waits for the GPU, and so for the ranks that send them."""
        if labels.device.type == "cpu":
            return labels
        with self._waiting("all-gather features"):
            return labels.cpu()

    def sum_gradient(self, gradient: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the feature gradient (G, E) over the ranks.

        Collectives: reduce-scatter ``feature_gradient``, (G, E) -> (B, E).

        Returns:
            A function that waits for the rows (B, E) of this rank and returns them.
        """
        result = reduce_scatter_rows(gradient, self.collectives.size)

        def wait() -> torch.Tensor:
            with self._waiting("reduce-scatter feature_gradient"):
                return result()

        return wait

    def agree(self, features: torch.Tensor, labels) -> None:
        """Agrees with the other ranks on the batch size, or raises the same error on all of them.

        Collectives: all-gather ``batch`` of sizes and errors.

        Raises:
            JobError: On every rank: the batch sizes differ, or a rank's features or labels have wrong shapes or values.
            TypeError: On every rank, if a rank's labels are not integers.
        """
        local = features.shape[0] if features.ndim else 0, self._error(features, labels)
        batches, errors = zip(*self.collectives.gather_object("batch", local))
        failed = [rank for rank, each in enumerate(errors) if each is not None]
        if failed:
            where = "" if len(failed) == len(errors) else f" (rank {failed[0]} of {len(errors)})"
            first = errors[failed[0]]
            raise (TypeError if isinstance(first, TypeError) else JobError)(f"{first}{where}")
        if len(set(batches)) > 1:
            raise JobError(f"the ranks' batch sizes are {list(batches)}: all must be the same in a step")
        self._batch = batches[0]

    def _waiting(self, name: str) -> AbstractContextManager[None]:
        """See Collectives.waiting. NCCL runs in the background, so it is the copy to the host that waits for ranks."""
        return self.collectives.waiting(name) if self.collectives.size > 1 else nullcontext()

    def _digits(self, features: torch.Tensor, labels) -> torch.Tensor:
        """Returns labels and flags (B, 2) on the device; NaN for a label that is not in 0..C-1."""
        labels = to_device(labels, features.device).reshape(-1).long()
        inside = (labels >= 0) & (labels < self.num_classes)
        return torch.where(inside[:, None], encode_labels(labels, self.rank_flags, torch).to(features.dtype), np.nan)

    def _misfit(self, features: torch.Tensor, labels) -> Exception | None:
        """Returns the error of shapes or types, which the host finds without waiting for the device; None if valid."""
        try:
            labels = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            return TypeError(f"the labels cannot become a tensor: {error}")
        if features.ndim != 2 or features.shape[1] != self.embedding_size or not len(features):
            return ValueError(
                f"the embeddings have shape {tuple(features.shape)}, expected (B, {self.embedding_size}) with B above "
                "0: the backbone and the layer must have the same embedding_size"
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            return TypeError(
                f"the labels are of type {labels.dtype}, expected integers: int64 holds all of them exactly"
            )
        if labels.shape not in ((len(features),), (len(features), 1)):
            return ValueError(
                f"the labels have shape {tuple(labels.shape)}, expected ({len(features)},), one per embedding"
            )
        return None

    def _error(self, features: torch.Tensor, labels) -> Exception | None:
        """Returns the error of a batch; None if it is valid."""
        if self._refused is not None:
            refused, self._refused = self._refused, None  # only once: the next step may not use gather_labels
            return refused
        misfit = self._misfit(features, labels)
        try:
            if misfit is None:
                check_labels(torch.as_tensor(labels).reshape(-1).cpu().numpy(), self.num_classes)
        except ValueError as error:
            return error
        return misfit
