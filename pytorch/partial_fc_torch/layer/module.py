"""The layer of one rank as a module; the base of PartialFC and PartialFC_V2.

Shapes: B local batch, R ranks, G = B*R global batch, C classes, L classes of this rank, S sampled classes of this rank,
E embedding.
"""

from collections.abc import Callable

import numpy as np
import torch

from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.layer.sampling import (
    UNKNOWN_PROBABILITIES,
    insert_positives,
)

from ..device_defaults import gpu_facts, layer_type
from .device import to_device
from .exchange import LayerExchange
from .gradients import DenseGradient, RowGradient
from .kernels.choice import passes_of
from .margins import as_margin
from .mean_loss import MeanLoss
from .optimizers import RowOptimizer
from .products import products_of
from .rank_centers import RankCenters
from .rows import TileGradient
from .step import Drawn, MarginSoftmax, Step
from .stores import CenterStore
from .torch_passes import TorchPasses


class ClassCenters(RankCenters):
    """This rank's centers with their sampler, margin and optimizer.

    Collectives of a step, in order:
        1. all-gather ``features``: (B, E + 2) -> (G, E + 2), features, labels and rank flags;
        2. all-gather ``targets``, only if the margin needs the targets of all ranks: (1, G) -> (R, G);
        3. all-gather ``softmax_statistics``: (3, G) -> (3R, G), maximum, sum and target logit of every row;
        4. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    The first step, and a step with another B, also gather ``batch``, see LayerExchange.gather_batch.

    Args:
        margin_loss: a Margin, or another object that `as_margin` accepts.
        embedding_size: E.
        num_classes: C, of all ranks together.
        sample_rate: fraction of class centers sampled per step, at most 1. With 0, only the centers of the batch are
            used; their number depends on the labels, so the host waits for the GPU in the middle of a step.
        optimizer: updates the centers of a step; None gives ``weight`` a dense gradient instead.
        update_in_backward: whether the backward pass updates the centers. If False, backward passes accumulate the
            gradient of the sampled rows, and ``layer.optimizer.step()`` applies it, see CenterOptimizer.
        sampling_correction: weights each sampled negative by 1 / its probability, so that the sum over the negatives
            is unbiased, see log_weights in partial_fc/layer/sampling.py.
        seed: seeds the initial centers and the sampler; None draws it from rank 0's PyTorch generator, which
            torch.manual_seed seeds (broadcast ``seed``).
        collectives: this process's collectives; None uses the default process group.
        tile_classes: see TorchPasses.
        logits_cache_mb: MiB of logits that a step may keep between its passes; None chooses, see LogitsCache.
        layer_dtype: type of the operands of the layer's products, as a dtype or its name: float32, "tf32" (float32 on
            CPUs), bfloat16, or float16, which is fast on GPUs only. "auto" is TF32 on GPUs that support it, otherwise
            float32. Centers, sums, statistics and targets are float32; layer/products.py bounds the error.
        layer_kernel: "torch" uses PyTorch's operators; "triton" uses fused kernels if they support the layer and agree
            with PyTorch's operators in the first step; "auto" is "triton" on GPUs. The log has the reason if the
            kernels are not used.
        folder: keeps centers and states in files in this folder, see FileStore; for banks that do not fit into memory,
            with a small sample_rate.
        on_host: keeps centers and states in host memory. From there, and from files, a step on a GPU copies the rows
            of its sample, see HostStore.
        store: function (L, device of the arrays) -> CenterStore for centers and states; unused if ``folder`` is set.
        device: where the layer computes, and where it keeps the centers without ``folder`` and ``on_host``; None is
            PyTorch's default.

    Attributes:
        weight: (L, E) float32 parameter on the device, the host or in a file. Initially normal with standard deviation
            0.01; depends on the seed and the class, not on R.
        Others: the states of the optimizer, by name.
        class_start: first class of this rank.
        num_local: L; 0 on the last ranks if R > C.
        margin, update_in_backward: as above.
        row_optimizer: the ``optimizer`` argument.
        optimizer: CenterOptimizer, for learning rate schedulers and explicit steps; None without ``row_optimizer``.
        sample_rate: as above; may be set between two steps.
        in_files: whether the centers are in files.
        sampler: WeightIndexSampler of this rank.
        num_update: number of updates done, for error messages; a resumed training sets it.

    Raises:
        TypeError: ``margin_loss`` is not a margin.
        ValueError: An argument is out of range, or the launcher started several processes without a process group.
        OSError: ``folder`` is not writable, or has too little space for centers and states.
    """

    def __init__(
        self,
        margin_loss,
        embedding_size: int,
        num_classes: int,
        sample_rate: float = 1.0,
        *,
        optimizer: RowOptimizer | None = None,
        update_in_backward: bool = True,
        sampling_correction: bool = False,
        seed: int | None = 0,
        collectives: Collectives | None = None,
        tile_classes: int = 0,
        logits_cache_mb: int | None = None,
        layer_dtype: torch.dtype | str = "auto",
        layer_kernel: str = "auto",
        folder: str | None = None,
        on_host: bool = False,
        store: Callable[[int, torch.device], CenterStore] = CenterStore,
        device: torch.device | str | None = None,
    ):
        device = torch.empty(0, device=device).device
        margin = as_margin(margin_loss, device)
        super().__init__(
            embedding_size,
            num_classes,
            sample_rate,
            optimizer=optimizer,
            sampling_correction=sampling_correction,
            seed=seed,
            collectives=collectives,
            folder=folder,
            on_host=on_host,
            store=store,
            device=device,
            requires_grad=optimizer is None or not update_in_backward,
        )
        self.margin, self.update_in_backward = margin, update_in_backward or optimizer is None
        self._exchange = LayerExchange(self.collectives, num_classes, embedding_size)
        self._softmax = self._build_softmax(device, layer_dtype, layer_kernel, tile_classes, logits_cache_mb)

    def _build_softmax(
        self, device: torch.device, dtype: torch.dtype | str, kernel: str, tile_classes: int, cache_mb: int | None
    ) -> MarginSoftmax:
        products = products_of(layer_type(dtype, gpu_facts(device)), self.margin.scale)
        cache_bytes = None if cache_mb is None else cache_mb << 20
        passes = passes_of(kernel, TorchPasses(self.margin, products, tile_classes, cache_bytes), self.row_optimizer)
        weighted = self.num_local if self.sampling_correction else 0
        return MarginSoftmax(self._exchange, self._store, self.class_start, self.margin, products, passes, weighted)

    @property
    def requires_positives(self) -> bool:
        """Whether every label's center must be among the centers of the step, see `sample`; by default True."""
        return self._softmax.requires_positives

    @requires_positives.setter
    def requires_positives(self, value: bool) -> None:
        self._softmax.requires_positives = value

    @property
    def rank_flags(self) -> RankFlags:
        """RankFlags of this rank, sent to all ranks with the labels of the next step."""
        return self._exchange.rank_flags

    @rank_flags.setter
    def rank_flags(self, value: RankFlags) -> None:
        self._exchange.rank_flags = value

    @property
    def all_rank_flags(self) -> np.ndarray:
        """(R,) int64, the RankFlags of all ranks in the last step."""
        return self._exchange.all_rank_flags

    def sample(self, global_label: torch.Tensor) -> torch.Tensor:
        """Samples the centers of a step. Users may replace this method.

        The sample must contain every positive, unless ``requires_positives`` is set to False: rows without their
        positive then have no loss and no gradient, but still count in the mean over the G rows.

        Args:
            global_label: (G,) int64 on the device of the centers. Some are out of range if a batch is invalid or its
                size has changed: the ranks find out later, and then raise an error or repeat the step.

        Returns:
            Sorted local indices (S,) int64 on the same device.
        """
        sampler, device = self.sampler, global_label.device
        if sampler.num_sample >= self.num_local:
            return torch.arange(self.num_local, device=device)
        if len(global_label) > sampler.num_sample:  # the positives may exceed the sample; the host must count them
            return to_device(sampler(self._exchange.to_host(global_label).numpy())[0], device)
        drawn, order = sampler.draw(len(global_label))
        if device.type == "cpu":  # NumPy sorts nearly sorted arrays ten times as fast as PyTorch
            local_labels = self._exchange.to_host(global_label).numpy() - self.class_start
            index = insert_positives(drawn, order, local_labels, self.num_local)
            return to_device(np.sort(index, kind="stable"), device)
        drawn_on_device, order_on_device = to_device(drawn, device), to_device(order, device)
        local_labels = global_label - self.class_start
        return insert_positives(drawn_on_device, order_on_device, local_labels, self.num_local, torch).sort().values

    def forward(self, local_embeddings: torch.Tensor, local_labels) -> torch.Tensor:
        """Computes the mean loss over the global batch, with the classes that `sample` selects.

        The backward pass gives the embeddings R times the gradient of the mean loss, so that DistributedDataParallel's
        average over the ranks gives a backbone the gradient of the mean loss.

        Args:
            local_embeddings: (B, E) of this rank; B must be the same on all ranks.
            local_labels: (B,) or (B, 1) integers in 0..C-1.

        Returns:
            Scalar, the same on every rank.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: On every rank, see MarginSoftmax.forward.
            TypeError: ``weight`` was converted to a type other than float32 or float64.
        """
        return MeanLoss.apply(self._on_device(local_embeddings), self.weight, local_labels, self)

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Trains the centers on one batch.

        Args:
            features: (B, E) of this rank; B must be the same on all ranks. Need not be detached from its graph.
            labels: (B,) or (B, 1) integers in 0..C-1.

        Returns:
            gradient: (B, E), R times the gradient of the mean loss by ``features``, in the type of the centers. Call
                ``features.backward(gradient)``; DistributedDataParallel's average over the ranks is then the gradient
                of the mean loss.
            loss: mean loss over the global batch, a scalar on the CPU.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: On every rank, see MarginSoftmax.forward;
                no center has changed.
        """
        step = self._forward_step(self._on_device(features.detach()), labels, ahead=True)
        gradient = self._backward_step(step)[0].to(features.device)
        return gradient, torch.tensor(step.loss, dtype=gradient.dtype)  # on the CPU, so that reading it never waits

    def _prepare_sample(self) -> None:
        if self.sampling_correction and getattr(self.sample, "__func__", None) is not ClassCenters.sample:
            raise ValueError(UNKNOWN_PROBABILITIES)
        if self._store.samples_on_host:
            self._prefetch()  # before the first step, too, so that a resumed training has its rows in the same order

    def _draw(self, labels: torch.Tensor) -> Drawn:
        """Samples the centers of a step for the labels (G,) of all ranks."""
        return self._softmax.draw(self._centers(), self.sample, labels)

    def _forward_step(
        self,
        features: torch.Tensor,
        labels,
        ahead: bool = False,
        draw: Callable[[torch.Tensor], Drawn] | None = None,
    ) -> Step:
        if draw is None:
            self._prepare_sample()
        sampler, margin = self.sampler.state(), [buffer.clone() for buffer in self.margin.buffers()]
        arguments = features, labels, draw or self._draw, self.num_update + 1, ahead
        try:
            with self._full_precision():
                step = self._softmax.forward(*arguments)
            if step is None:
                # The ranks have agreed on another batch size. The repetition must be the step that a training resumed
                # here would make: it draws the same classes and counts the batch once in the margin's statistics.
                self.sampler.restore(sampler)
                self._restore_margin(margin)
                with self._full_precision():
                    step = self._softmax.forward(*arguments)
                assert step is not None, "the ranks have agreed on the batch"
        except Exception:
            self._restore_margin(margin)  # NaN features may have made its buffers NaN
            raise
        if not self.update_in_backward:  # accumulated gradients share one sample of negatives
            self._sampler_after_step = self.sampler.state()
            self.sampler.restore(sampler)
        return step

    def _restore_margin(self, buffers: list[torch.Tensor]) -> None:
        for buffer, before in zip(self.margin.buffers(), buffers):
            buffer.copy_(before)

    def _backward_step(
        self, step: Step, factor: torch.Tensor | float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns (R times the mean loss's gradient by the features (B, E), its dense gradient by the centers or None).

        ``factor`` multiplies both, and the gradient for `CenterOptimizer`, but not an update in the backward pass.
        """
        receive: DenseGradient | RowGradient | Callable[[TileGradient], None]
        if self.row_optimizer is None:
            receive = DenseGradient(self.weight.detach())
        else:
            receive = self._update(step.sampled) if self.update_in_backward else RowGradient(step.sampled)
        with self._full_precision():
            d_features = self._softmax.backward(step, receive).mul_(factor)
        if isinstance(receive, RowGradient):
            assert self.optimizer is not None
            index, gradient = receive.in_order()
            self.optimizer.accumulate(index, gradient.mul_(factor))
        else:
            self._end_update(step.sampled)
        return d_features, receive.gradient.mul_(factor) if isinstance(receive, DenseGradient) else None
