"""The centers of one rank as a module, with the forward pass of the layer; the base of PartialFC and PartialFC_V2.

Shapes: B local batch, R ranks, G = B*R global batch, C classes, L classes of this rank, S sampled classes of this rank,
E embedding.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import rank_info
from partial_fc.layer.bank_files import BankFiles, Blocks, rate_limited
from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.layer.sampling import WeightIndexSampler, insert_positives, label_columns
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB

from ..collectives import default_collectives
from .center_gradients import DenseGradient, SGDUpdate
from .class_layer import ClassLayer, Step, StepCenters
from .device import to_device
from .margin_losses import CombinedMarginLoss
from .staging import Staging


class ShardedCenters(torch.nn.Module):
    """This rank's centers, their sampler, and the forward pass.

    Collectives of a step, in the order they run:
        1. all-gather ``features``: (B, E + 2) -> (G, E + 2), the features, labels and rank flags;
        2. all-gather ``softmax_statistics``: (3, G) -> (3R, G), maximum, sum and target of every row;
        3. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    A change of B adds ``batch``, see LayerExchange.gather_batch.

    Args:
        margin_loss: CombinedMarginLoss, ArcFace or CosFace.
        embedding_size: E.
        num_classes: C, of all ranks together.
        sample_rate: part of the centers that each step samples, above 0 and at most 1.
        seed: of the initial centers and of the sampler.
        collectives: of this process; None uses those of the default process group.
        tile_classes, logits_cache_mb: see TiledMarginSoftmax; the cache in MiB.
        layer_dtype: of the operands of the layer's products: float32, bfloat16, or float16, which is fast on GPUs
            only. Centers, sums, statistics and targets are float32; layer/products.py bounds the error.
        folder: keeps centers and momentum in files in this folder, see BankFiles, for a bank that does not fit into
            memory and a small sample_rate.
        on_host: keeps centers and momentum in the memory of the host. From there, and from files, a step on a GPU
            copies the rows of its sample, see layer/staging.py.
        device: where the layer computes, and keeps the centers without ``folder`` and ``on_host``; None is PyTorch's
            default.

    Attributes:
        weight: (L, E) float32 parameter on the device, the host or in a file, drawn from N(0, 0.01); it depends on
            seed and class, not on R.
        class_start: first class of this rank.
        num_local: L; 0 on the last ranks if R > C.
        device: where the layer computes.
        files: BankFiles; None without ``folder``.
        sampler: WeightIndexSampler of this rank.
        num_update: backward passes done, for error messages; a training that resumes sets it.
        rank_flags: RankFlags of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.

    Raises:
        TypeError: ``margin_loss`` has no margins and scale.
        ValueError: an argument is out of its range, or the launcher started several processes without a process group.
        OSError: ``folder`` is not writable, or has too little space for centers and momentum.
    """

    def __init__(
        self,
        margin_loss: CombinedMarginLoss,
        embedding_size: int,
        num_classes: int,
        sample_rate: float = 1.0,
        *,
        seed: int = 0,
        collectives: Collectives | None = None,
        tile_classes: int = 0,
        logits_cache_mb: int = LOGITS_CACHE_MB,
        layer_dtype: torch.dtype = torch.float32,
        folder: str | None = None,
        on_host: bool = False,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        if not isinstance(margin_loss, CombinedMarginLoss):
            raise TypeError(
                f"the margin loss is of type {type(margin_loss).__name__}, expected CombinedMarginLoss, ArcFace or "
                "CosFace of partial_fc_torch: the layer computes their margins itself"
            )
        if collectives is None:
            _require_process_group()
        self.collectives = default_collectives if collectives is None else collectives
        rank, size = self.collectives.rank, self.collectives.size
        shard = shard_of(num_classes, rank, size)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.class_start = shard.start
        self.num_local = shard.size
        self.sampler = WeightIndexSampler(num_sampled(shard.size, sample_rate), shard.size, rank, shard.start, seed)
        self.num_update = 0
        self.rank_flags = RankFlags(0)
        self.all_rank_flags = np.zeros(size, np.int64)
        self.files = self._open_files(folder) if folder and shard.size else None
        device = torch.empty(0, device=device).device
        self._staging: Staging | None = None
        self._staging_device = device if on_host or (self.files and device.type != "cpu") else None
        weight = self._allocate("weight", device)
        self.copy_rows("weight", weight, center_blocks(shard.start, shard.stop, embedding_size, seed))
        self.weight = torch.nn.Parameter(weight)
        tiling = tile_classes, logits_cache_mb, layer_dtype
        self._layer = ClassLayer(margin_loss, self.collectives, num_classes, embedding_size, *tiling)

    def _open_files(self, folder: str) -> BankFiles:
        sizes = self.num_local, self.embedding_size, self.num_local
        files = BankFiles(folder, *sizes, self.collectives.local_size)
        if self.sampler.num_sample >= self.num_local:
            for file in files.pieces[0]:
                file.expect_all_rows()
        return files

    def _allocate(self, field: str, device) -> torch.Tensor:
        """Zeros (L, E) float32: in a file, on the host, or on a device."""
        if self.files:
            return torch.from_numpy(self.files.file(0, field).rows)
        place = "cpu" if self._staging_device else device
        return torch.zeros(self.num_local, self.embedding_size, dtype=torch.float32, device=place)

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self._staging_device or self.weight.device

    @property
    def requires_positives(self) -> bool:
        """Whether every label's center must be among those of the step, see `sample`; True."""
        return self._layer.requires_positives

    @requires_positives.setter
    def requires_positives(self, value: bool) -> None:
        self._layer.requires_positives = value

    def synchronize(self) -> None:
        """Waits until ``weight`` and its momentum hold the last update.

        With ``on_host``, and with ``folder`` and a GPU, call it before they are read outside of a step; ``state_dict``
        does. Write to them with `copy_rows` or ``load_state_dict``: the step may have copies of rows for the next one.
        """
        if self._staging:
            self._staging.synchronize()

    def _apply(self, *arguments, **options):
        if self._staging:
            raise ValueError("the centers are on the host: the layer cannot move to another device or type")
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments):
        self._forget_copies()
        super()._load_from_state_dict(*arguments)

    def _save_to_state_dict(self, *arguments):
        self.synchronize()
        super()._save_to_state_dict(*arguments)

    def copy_rows(self, field: str, rows: torch.Tensor, blocks: Blocks) -> None:
        """Writes consecutive rows of "weight" or "weight_mom", see rate_limited."""
        self._forget_copies()
        flush = self.files.file(0, field).flush if self.files else lambda: None
        for row, values in rate_limited(blocks, field, self.num_local, flush, self.collectives.report_progress):
            rows[row : row + len(values)] = torch.from_numpy(values)

    def sample(self, global_label: torch.Tensor) -> torch.Tensor:
        """Samples the centers of a step. Users may replace this method.

        The sample must contain every positive, unless ``requires_positives`` is set to False: rows without theirs then
        have no loss and no gradient, and still count in the mean over the G rows.

        Args:
            global_label: (G,) int64 on the device of the centers. A batch with an invalid label or of another size than
                the last one also comes here, with labels that are in no class, before its error or its repetition.

        Returns:
            Sorted local indices (S,) int64 on the same device.
        """
        sampler, device = self.sampler, global_label.device
        if sampler.num_sample >= self.num_local:
            return torch.arange(self.num_local, device=device)
        if len(global_label) > sampler.num_sample:  # more positives than num_sample are possible, as the host can see
            return to_device(sampler(self._on_host(global_label).numpy())[0], device)
        drawn, order = (to_device(places, device) for places in sampler.draw(len(global_label)))
        index = insert_positives(drawn, order, global_label - self.class_start, self.num_local, torch)
        return index.sort().values

    def forward(self, local_embeddings: torch.Tensor, local_labels) -> torch.Tensor:
        """Computes the mean loss over the global batch, with the classes that `sample` selects.

        Its backward pass gives the embeddings R times the gradient of the mean loss, so that the average over the
        ranks by DistributedDataParallel gives a backbone the gradient of the mean loss.

        Args:
            local_embeddings: (B, E) of this rank, B the same on all ranks.
            local_labels: (B,) or (B, 1) integers in 0..C-1.

        Returns:
            Scalar, the same on every rank.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: on every rank, see ClassLayer.forward.
            TypeError: ``weight`` was converted to another type than float32 or float64.
        """
        return _MeanLoss.apply(self._on_device(local_embeddings), self.weight, local_labels, self)

    def _on_device(self, features: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the centers are {self.weight.dtype}, but must be float32 or float64: labels are sent in it. Set "
                "layer_dtype for faster products"
            )
        return features.to(self.device, self.weight.dtype)

    def _on_host(self, global_label: torch.Tensor) -> torch.Tensor:
        """The labels (G,) on the host, which waits for the GPU, and so for the ranks that it gathers them from."""
        if global_label.device.type == "cpu":
            return global_label
        with self.collectives.waiting("all-gather features"):
            return global_label.cpu()

    def _forget_copies(self) -> None:
        if self._staging:
            self._staging.invalidate()

    def _forward_step(self, features: torch.Tensor, labels) -> Step:
        before = self.sampler.state()
        arguments = features, labels, self.rank_flags, self.num_update + 1, self._select
        step = self._layer.forward(*arguments)
        if step is None:
            self.sampler.restore(before)  # a training that resumes with this step draws the same classes
            step = self._layer.forward(*arguments)
            assert step is not None, "the ranks have agreed on the batch"
        self.all_rank_flags = step.rank_flags
        return step

    def _select(self, labels: torch.Tensor) -> StepCenters:
        """The centers of a step; starts to read those rows from the files that were not drawn ahead."""
        index = self.sample(labels)
        if self.files:
            self.files.prefetch(index.numpy())
        columns = label_columns(labels, index, self.class_start, torch) if len(index) else torch.full_like(labels, -1)
        return StepCenters(self.weight.detach(), None if len(index) == self.num_local else index, columns)

    def _backward_step(self, step: Step) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns (R times the gradient of the mean loss by the features (B, E), by the centers (L, E) or None)."""
        center_gradient = self._center_gradient(step)
        d_features = self._layer.backward(step, center_gradient)
        self.num_update += 1
        self._finish(step)
        return d_features, center_gradient.grad

    def _finish(self, step: Step) -> None:
        """Draws the classes of the next step, and starts to read their rows, while the backbone computes."""
        if self.sampler.num_sample < self.num_local:
            self._draw_ahead()

    def _draw_ahead(self) -> np.ndarray:
        drawn = self.sampler.prefetch()
        if self.files:
            self.files.prefetch(drawn)
        return drawn

    def _center_gradient(self, step: Step) -> SGDUpdate | DenseGradient:
        """Returns what receives the gradient of the centers of a step."""
        raise NotImplementedError


class _MeanLoss(torch.autograd.Function):
    """The mean loss of a step, and its gradients by the features and, if the layer computes it, by the centers."""

    @staticmethod
    def forward(ctx, features, weight, labels, layer):
        ctx.layer, ctx.step = layer, layer._forward_step(features, labels)
        ctx.save_for_backward(weight)
        return features.new_full((), ctx.step.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss):
        assert ctx.saved_tensors, "raises an error if the centers have changed since the forward pass"
        d_features, d_weight = ctx.layer._backward_step(ctx.step)
        return d_features.mul_(d_loss), None if d_weight is None else d_weight.mul_(d_loss), None, None


def _require_process_group() -> None:
    started = rank_info(os.environ).size
    if started > 1 and default_collectives.size == 1:
        raise ValueError(
            f"the launcher started {started} processes, but there is no process group: call "
            "torch.distributed.init_process_group before the layer is built"
        )
