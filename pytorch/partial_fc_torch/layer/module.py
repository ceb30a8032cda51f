"""The centers of one rank as a module; the base of PartialFC and PartialFC_V2.

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

    Collectives of a step, in the order they run:
        1. all-gather ``features``: (B, E + 2) -> (G, E + 2), the features, labels and rank flags;
        2. all-gather ``targets``, only for a margin that needs those of all ranks: (1, G) -> (R, G);
        3. all-gather ``softmax_statistics``: (3, G) -> (3R, G), maximum, sum and target of every row;
        4. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    A change of B adds ``batch``, see LayerExchange.gather_batch.

    Args:
        margin_loss: a Margin, or what `as_margin` accepts.
        embedding_size: E.
        num_classes: C, of all ranks together.
        sample_rate: part of the centers that each step samples, at most 1; with 0 those of the batch alone, whose
            number is known when the labels are: then the host waits for the GPU in the middle of a step.
        optimizer: updates the centers of a step; None gives ``weight`` a dense gradient instead.
        update_in_backward: the backward pass updates the centers. False: it adds the gradient of the step's rows to
            that of the backward passes before, and ``layer.optimizer.step()`` applies the sum, see CenterOptimizer.
        sampling_correction: counts each sampled negative 1 / its probability times, so that the sum over the negatives
            is unbiased, see log_weights in partial_fc/layer/sampling.py.
        seed: of the initial centers and of the sampler; None draws it with PyTorch's generator of rank 0, which
            torch.manual_seed seeds (broadcast ``seed``).
        collectives: of this process; None uses those of the default process group.
        tile_classes: see TorchPasses.
        logits_cache_mb: MiB of logits that a step may keep between its passes; None chooses, see LogitsCache.
        layer_dtype: of the operands of the layer's products, of PyTorch or its name: float32, "tf32" (on GPUs, else
            float32), bfloat16, or float16, which is fast on GPUs only; "auto" is TF32 on the GPUs that have it, else
            float32. Centers, sums, statistics and targets are float32; layer/products.py bounds the error.
        layer_kernel: "torch": operators of PyTorch; "triton": fused kernels, where they serve the layer and agree with
            them, otherwise these; "auto": as "triton" on GPUs. The log says why the kernels are not used.
        folder: keeps centers and states in files in this folder, see FileStore, for a bank that does not fit into
            memory and a small sample_rate.
        on_host: keeps centers and states in the memory of the host. From there, and from files, a step on a GPU copies
            the rows of its sample, see HostStore.
        store: (L, device of the arrays) -> CenterStore, which keeps centers and states unless ``folder`` is given.
        device: where the layer computes, and keeps the centers without ``folder`` and ``on_host``; None is PyTorch's
            default.

    Attributes:
        weight: (L, E) float32 parameter on the device, the host or in a file, normal with standard deviation
            0.01; it depends on seed and class, not on R.
        Others: the states of the optimizer, by their names.
        class_start: first class of this rank.
        num_local: L; 0 on the last ranks if R > C.
        margin, update_in_backward: as above.
        row_optimizer: the ``optimizer`` above.
        optimizer: CenterOptimizer, for schedulers of the learning rate and for explicit steps; None without the above.
        sample_rate: may be set between two steps.
        in_files: whether the centers are in files.
        sampler: WeightIndexSampler of this rank.
        num_update: updates done, for error messages; a training that resumes sets it.

    Raises:
        TypeError: ``margin_loss`` is no margin.
        ValueError: an argument is out of its range, or the launcher started several processes without a process group.
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
        own = self._exchange, self._store, self.class_start
        return MarginSoftmax(*own, self.margin, products, passes, weighted)

    @property
    def requires_positives(self) -> bool:
        """Whether every label's center must be among those of the step, see `sample`; True."""
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
        if len(global_label) > sampler.num_sample:  # more positives than that are possible, as only the host can see
            return to_device(sampler(self._exchange.to_host(global_label).numpy())[0], device)
        drawn, order = sampler.draw(len(global_label))
        if device.type == "cpu":  # NumPy sorts what is nearly sorted ten times as fast as PyTorch
            own = self._exchange.to_host(global_label).numpy() - self.class_start
            return to_device(np.sort(insert_positives(drawn, order, own, self.num_local), kind="stable"), device)
        places = to_device(drawn, device), to_device(order, device)
        index = insert_positives(*places, global_label - self.class_start, self.num_local, torch)
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
            ValueError, TypeError, MissingPositiveError, FloatingPointError: on every rank, see MarginSoftmax.forward.
            TypeError: ``weight`` was converted to another type than float32 or float64.
        """
        return MeanLoss.apply(self._on_device(local_embeddings), self.weight, local_labels, self)

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Trains the centers on one batch.

        Args:
            features: (B, E) of this rank, B the same on all ranks; detached from its graph or not.
            labels: (B,) or (B, 1) integers in 0..C-1.

        Returns:
            ((B, E), R times the gradient of the mean loss by ``features``, in the type of the centers;
            mean loss over the global batch, a scalar on the CPU). Call ``features.backward`` with the first; with
            DistributedDataParallel its average over the ranks is the gradient of the mean loss.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: on every rank, see MarginSoftmax.forward;
                no center has changed.
        """
        step = self._forward_step(self._on_device(features.detach()), labels, ahead=True)
        gradient = self._backward_step(step)[0].to(features.device)
        return gradient, torch.tensor(step.loss, dtype=gradient.dtype)  # on the host, which nobody has to wait for

    def _prepare_sample(self) -> None:
        if self.sampling_correction and getattr(self.sample, "__func__", None) is not ClassCenters.sample:
            raise ValueError(UNKNOWN_PROBABILITIES)
        if self._store.samples_on_host:
            self._prefetch()  # before the first step, too: a training that resumes has its rows in the same order

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
                # The ranks have agreed on another batch size. A training that resumes with this step must do the same
                # as this one: draw the same classes, and count the batch once.
                self.sampler.restore(sampler)
                self._restore_margin(margin)
                with self._full_precision():
                    step = self._softmax.forward(*arguments)
                assert step is not None, "the ranks have agreed on the batch"
        except Exception:
            self._restore_margin(margin)  # NaN, if the features are
            raise
        if not self.update_in_backward:  # gradients that are summed belong to one sample of negatives
            self._sampler_after_step = self.sampler.state()
            self.sampler.restore(sampler)
        return step

    def _restore_margin(self, buffers: list[torch.Tensor]) -> None:
        for buffer, before in zip(self.margin.buffers(), buffers):
            buffer.copy_(before)

    def _backward_step(
        self, step: Step, factor: torch.Tensor | float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns (R times the gradient of the mean loss by the features (B, E), by the centers (L, E) or None).

        Both are multiplied by ``factor``, and so is the gradient for `CenterOptimizer`; the update of a backward pass
        is not.
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
