"""The centers of one rank as a module; the base of PartialFC and PartialFC_V2.

Shapes: B local batch, R ranks, G = B*R global batch, C classes, L classes of this rank, S sampled classes of this rank,
E embedding.
"""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import cores_of_rank, rank_info
from partial_fc.layer.bank_files import Blocks, rate_limited
from partial_fc.layer.center_states import center_widths
from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.layer.sampling import (
    NOTHING_TO_CORRECT,
    UNKNOWN_PROBABILITIES,
    WeightIndexSampler,
    insert_positives,
)
from partial_fc.layer.sharding import num_sampled, shard_of

from ..collectives import default_collectives
from ..device_defaults import gpu_facts, layer_type
from .center_optimizer import CenterOptimizer
from .device import to_device
from .exchange import LayerExchange
from .gradients import DenseGradient, RowGradient, tiles_of_gradient
from .kernels.choice import passes_of
from .margins import as_margin
from .optimizers import RowOptimizer, RowUpdate
from .products import products_of
from .rows import Centers, TileGradient
from .step import Drawn, MarginSoftmax, Step
from .stores import CenterStore, FileStore, HostStore, StepCenters
from .torch_passes import TorchPasses


class ClassCenters(torch.nn.Module):
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
        weight: (L, E) float32 parameter on the device, the host or in a file, drawn from N(0, 0.01); it depends on
            seed and class, not on R.
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
        super().__init__()
        device = torch.empty(0, device=device).device
        self.margin, self.row_optimizer = as_margin(margin_loss, device), optimizer
        self.update_in_backward = update_in_backward or optimizer is None
        self.optimizer = CenterOptimizer(self._update_rows) if optimizer else None
        if collectives is None:
            _require_process_group()
        self.collectives = default_collectives if collectives is None else collectives
        rank, size = self.collectives.rank, self.collectives.size
        if seed is None:
            own_seed = torch.randint(2**63 - 1, (), device="cpu").item()
            seed = int(self.collectives.broadcast("seed", own_seed))
        shard = shard_of(num_classes, rank, size)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.class_start, self.num_local = shard.start, shard.size
        self.sampling_correction = sampling_correction
        self.sampler = WeightIndexSampler(shard.size, shard.size, rank, shard.start, seed)
        self.sample_rate = sample_rate
        self.num_update, self._sampler_after_step = 0, self.sampler.state()
        self.in_files = bool(folder) and shard.size > 0
        self._store = self._open_store(folder, on_host, store, device)
        weight, *states = [self._store.allocate(name, width) for name, width in self.widths.items()]
        self.weight = torch.nn.Parameter(weight, requires_grad=optimizer is None or not update_in_backward)
        for name, state in zip(self.states, states):
            self.register_buffer(name, state)
        self.copy_rows("weight", center_blocks(shard.start, shard.stop, embedding_size, seed))
        self._exchange = LayerExchange(self.collectives, num_classes, embedding_size)
        products = products_of(layer_type(layer_dtype, gpu_facts(device)), self.margin.scale)
        cache_bytes = None if logits_cache_mb is None else logits_cache_mb << 20
        passes = passes_of(layer_kernel, TorchPasses(self.margin, products, tile_classes, cache_bytes), optimizer)
        weighted = shard.size if sampling_correction else 0
        self._softmax = MarginSoftmax(self._exchange, self._store, shard.start, self.margin, products, passes, weighted)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the optimizer's states, which are attributes of the layer."""
        return tuple(self.row_optimizer.states) if self.row_optimizer else ()

    @property
    def widths(self) -> dict[str, int]:
        """The numbers per class of the centers and of each state."""
        return center_widths(self.embedding_size, self.row_optimizer.states if self.row_optimizer else {})

    @property
    def learning_rate(self) -> float | None:
        """The ``lr`` of ``optimizer``, for the next update of the centers; has to be set before it."""
        return self.optimizer.param_groups[0]["lr"] if self.optimizer else None

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self.optimizer is None:
            raise AttributeError("PartialFC_V2 has no learning rate: set that of the optimizer of its weight")
        self.optimizer.param_groups[0]["lr"] = value

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self.weight.device if self._store.movable else self._store.device

    @property
    def sample_rate(self) -> float:
        """Part of the centers that the next step samples."""
        return self._sample_rate

    @sample_rate.setter
    def sample_rate(self, value: float) -> None:
        if self.sampling_correction and value == 0:
            raise ValueError(NOTHING_TO_CORRECT)
        self.sampler.resize(num_sampled(self.num_local, value))
        self._sample_rate = value

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
        return _MeanLoss.apply(self._on_device(local_embeddings), self.weight, local_labels, self)

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

    def synchronize(self) -> None:
        """Waits until ``weight`` and the states hold the last update.

        With ``on_host``, and with ``folder`` and a GPU, call it before they are read outside of a step; ``state_dict``
        does. Write to them with `copy_rows` or ``load_state_dict``: the step may have copies of rows for the next one.
        """
        self._store.synchronize()

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context in which all rows are read from the first to the last."""
        return self._store.sequential_access()

    def rows(self, field: str) -> torch.Tensor:
        """Returns "weight" or a state without its graph, with the last update."""
        self.synchronize()
        rows: torch.Tensor = getattr(self, field).detach()
        return rows

    def copy_rows(self, field: str, blocks: Blocks) -> None:
        """Writes consecutive rows of "weight" or of a state, see rate_limited."""
        self._store.invalidate()
        rows, progress = getattr(self, field).detach(), self.collectives.report_progress
        for row, values in rate_limited(blocks, field, self.num_local, lambda: self._store.flush(field), progress):
            rows[row : row + len(values)] = torch.from_numpy(values)

    def _open_store(self, folder: str | None, on_host: bool, make_store, device: torch.device) -> CenterStore:
        if not self.num_local:
            return CenterStore(0, device)
        store: CenterStore = make_store(self.num_local, torch.device("cpu") if on_host else device)
        if folder:
            store = FileStore(self.num_local, folder, self.widths, self.collectives.local_size)
        if not on_host and store.device == device:
            return store
        return HostStore(store, device, cores_of_rank(self.collectives.local_size))

    def _centers(self) -> Centers:
        return Centers(self.weight.detach(), {name: getattr(self, name) for name in self.states})

    def _on_device(self, features: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the centers are {self.weight.dtype}, but must be float32 or float64: labels are sent in it. Set "
                "layer_dtype for faster products"
            )
        return features.to(self.device, self.weight.dtype)

    def _full_precision(self) -> AbstractContextManager[None]:
        """A context in which a surrounding autocast does not change the type of the products."""
        return torch.autocast(self.device.type, enabled=False)

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

    def _update_rows(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Updates the centers of an explicit step, see CenterOptimizer."""
        sampled = self._store.load(self._centers(), index)
        self.sampler.restore(self._sampler_after_step)
        self._apply_gradient(sampled, gradient)

    def _apply_gradient(self, sampled: StepCenters, gradient: torch.Tensor) -> None:
        """Updates centers with their gradient (S, E), in the order of their local indices; overwrites it."""
        update = self._update(sampled)
        for tile in tiles_of_gradient(sampled, gradient):
            update(tile)
        self._end_update(sampled)

    def _end_update(self, sampled: StepCenters) -> None:
        if sampled.classes is not None:  # copies, which are written back
            increment_version(self.weight)  # an earlier forward pass has copies of rows that change now
            self._store.save(self._centers(), sampled)
        self.num_update += 1
        self._prefetch()  # while the backbone computes

    def _prefetch(self) -> None:
        """Starts to draw the classes of the next step, unless this is done, and announces their rows."""
        if self.sampler.num_sample < self.num_local or self._store.samples_on_host:
            self._store.prefetch(self._centers(), self.sampler.begin_draw())

    def _update(self, sampled: StepCenters) -> RowUpdate:
        """What updates the centers of a step with their gradients."""
        if self.row_optimizer is None or self.learning_rate is None:
            raise ValueError("the layer has no learning rate: set its attribute learning_rate before the first update")
        return RowUpdate(self.row_optimizer, sampled.centers, self.learning_rate)

    def _apply(self, *arguments, **options):
        if not self._store.movable:
            raise ValueError("the centers are on the host: the layer cannot move to another device or type")
        return super()._apply(*arguments, **options)

    def get_extra_state(self) -> torch.Tensor:
        """Returns what ``state_dict`` has beside the arrays, of this rank: JSON in uint8."""
        state = {"classes": self._classes(), "num_update": self.num_update, "sampler": self.sampler.state()}
        return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Continues with what `get_extra_state` returned.

        Raises:
            ValueError: it is of another rank, or of another number of ranks.
        """
        saved = json.loads(state.cpu().numpy().tobytes())
        if saved["classes"] != self._classes():
            raise ValueError(
                "the state_dict has {} centers from class {} of {}".format(*saved["classes"])
                + ", this rank has {} from class {} of {}".format(*self._classes())
                + ": load what this rank has saved, or save with ShardedState for another number of ranks"
            )
        self.num_update = saved["num_update"]
        self.sampler.restore(saved["sampler"])

    def _classes(self) -> list[int]:
        return [self.num_local, self.class_start, self.num_classes]

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, *arguments):
        self._store.invalidate()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *arguments)
        if prefix + "_extra_state" in missing_keys:  # of arcface_torch, which saves the centers alone
            missing_keys.remove(prefix + "_extra_state")

    def _save_to_state_dict(self, *arguments):
        self.synchronize()
        super()._save_to_state_dict(*arguments)


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
        return *ctx.layer._backward_step(ctx.step, d_loss), None, None


def _require_process_group() -> None:
    started = rank_info(os.environ).size
    if started > 1 and default_collectives.size == 1:
        raise ValueError(
            f"the launcher started {started} processes, but there is no process group: call "
            "torch.distributed.init_process_group before the layer is built"
        )
