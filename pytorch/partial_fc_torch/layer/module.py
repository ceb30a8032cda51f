"""The layer of one rank as a module; the base of PartialFC and PartialFC_V2.

Shapes: B local batch, R ranks, G = B*R global batch, P labels of an item, C classes, L classes of this rank, S sampled
classes of this rank, K sub-centers, E embedding.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import cores_of_rank, rank_info
from partial_fc.layer.bank_files import Blocks, rate_limited
from partial_fc.layer.center_states import center_widths
from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.sampling import (
    NOTHING_TO_CORRECT,
    UNKNOWN_PROBABILITIES,
    WeightIndexSampler,
    insert_positives,
    label_columns,
    log_weights,
)
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.weighted_sampling import WeightedSampler, checked_weights
from partial_fc.utils.options import CENTER_DTYPES

from ..collectives import default_collectives
from ..device_defaults import gpu_facts, layer_type
from .center_optimizer import CenterOptimizer
from .exchange import LayerExchange
from .gradients import DenseGradient, GradientSink, RowGradient, tiles_of_gradient
from .margins import as_margin
from .objectives import Objective, as_objective
from .optimizers import RowOptimizer, RowUpdate
from .products import products_of
from .rounding import Rounding
from .rows import Centers, StepCenters, computed_type, is_narrow, to_device
from .step import Drawn, Loss, Step, StepComputation
from .stores import CenterStore, FileStore, HostStore
from .torch_passes import TorchPasses
from .update_labels import UpdateLabels

MAX_SUB_CENTERS = 255


class ClassCenters(torch.nn.Module):
    """This rank's centers with their sampler, margin, objective and optimizer; ``state_dict`` contains all of it.

    Collectives of a step, in order:
        1. all-gather ``features``: (B, E + 2P) -> (G, E + 2P), features, labels and rank flags;
        2. all-gather ``targets``, only if the margin needs the targets of all ranks: (1, G, P) -> (R, G, P);
        3. all-gather ``hardest``, only if the margin changes the k hardest negatives: (k + 1, G) -> (R(k + 1), G);
        4. all-gather ``softmax_statistics``: (2 + P, G) -> (2R + PR, G), the sum of the negatives of every row as two
           numbers, see Objective.term, and the logits of its labels; also their cosines if the objective reads them,
           and its parameters if it has any;
        5. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    The first step, and a step with another B or P, also gather ``batch``, see LayerExchange.gather_batch.

    For the arguments and attributes see PartialFC. ``optimizer=None`` gives ``weight`` a dense gradient, and the device
    is PyTorch's by default. In addition:

    Attributes:
        exchange: LayerExchange, with the flags that the ranks of a training send along with the labels.
        in_files: whether the centers are in files.
        sampler: WeightIndexSampler of this rank.
    """

    def __init__(
        self,
        margin: Any,
        embedding_size: int,
        num_classes: int,
        sample_rate: float = 1.0,
        *,
        objective: str | Objective | Callable[..., torch.Tensor] = "softmax",
        objective_options: Mapping[str, Any] | None = None,
        sub_centers: int = 1,
        optimizer: RowOptimizer | None = None,
        update_in_backward: bool = True,
        sampling_correction: bool = False,
        sampling_weights: np.ndarray | torch.Tensor | None = None,
        seed: int | None = 0,
        collectives: Collectives | None = None,
        tile_classes: int = 0,
        logits_cache_mb: int | None = None,
        layer_dtype: torch.dtype | str = "auto",
        layer_kernel: str = "auto",
        unit_copy: bool | None = None,
        center_dtype: torch.dtype | str = "float32",
        folder: str | None = None,
        on_host: bool = False,
        store: Callable[[int, torch.device], CenterStore] = CenterStore,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        device = torch.empty(0, device=device).device
        for name, value in {"num_classes": num_classes, "embedding_size": embedding_size}.items():
            if not hasattr(value, "__index__"):
                raise TypeError(f"{name} is {value!r}, but must be an integer")
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}, but must be at least 1")
        if not 1 <= sub_centers <= MAX_SUB_CENTERS:
            raise ValueError(f"sub_centers is {sub_centers}, but must be from 1 to {MAX_SUB_CENTERS}")
        margin = as_margin(margin, device)
        objective = as_objective(objective, margin.scale, num_classes, objective_options, device)
        if collectives is None:
            _require_process_group()
        self.collectives = default_collectives if collectives is None else collectives
        rank, size = self.collectives.rank, self.collectives.size
        if seed is None:
            seed = int(self.collectives.broadcast("seed", torch.randint(2**63 - 1, (), device="cpu").item()))
        shard = shard_of(num_classes, rank, size)
        self.center_dtype = _center_dtype(center_dtype)
        self.num_classes, self.embedding_size, self.sub_centers = num_classes, embedding_size, sub_centers
        self.class_start, self.num_local = shard.start, shard.size
        self.row_optimizer, self.update_in_backward = optimizer, update_in_backward or optimizer is None
        self.optimizer = CenterOptimizer(self._update_rows, objective.trained()) if optimizer else None
        self.sampling_correction = sampling_correction
        sizes = shard.size, shard.size, rank, shard.start, seed
        self._seed, self.sampler = seed, WeightIndexSampler(*sizes)
        self._log_weights_of: np.ndarray | None = None  # whose copy on the device is kept
        if sampling_weights is not None:
            of_rank = checked_weights(sampling_weights, num_classes)[shard.start : shard.stop]
            self.sampler = WeightedSampler(of_rank, *sizes)
        self.sample_rate = sample_rate
        self.num_update, self._sampler_after_step = 0, self.sampler.state()
        self.requires_positives = True
        self.in_files = bool(folder) and shard.size > 0
        self._store = self._open_store(folder, on_host, store, device)
        weight, *states = [self._allocate(name) for name in self.widths]
        self.weight = torch.nn.Parameter(weight, requires_grad=optimizer is None or not update_in_backward)
        for name, state in zip(self.states, states):
            self.register_buffer(name, state)
        first, end = shard.start * sub_centers, shard.stop * sub_centers
        self.copy_rows("weight", center_blocks(first, end, embedding_size, seed))
        self.register_buffer("_rank", torch.tensor(rank, device=device), persistent=False)  # see _copied
        self.margin, self.objective = margin, objective
        self.exchange = LayerExchange(self.collectives, num_classes, embedding_size)
        self._update_labels = UpdateLabels(self.exchange)
        products = products_of(layer_type(layer_dtype, gpu_facts(device)), margin.scale)
        loss = Loss(margin, objective, products, sub_centers)
        of_torch = TorchPasses(loss, tile_classes, None if logits_cache_mb is None else logits_cache_mb << 20)
        self._computation = StepComputation(loss, self.exchange, of_torch, layer_kernel, optimizer, unit_copy)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the optimizer's states, which are attributes of the layer."""
        return tuple(self.row_optimizer.states) if self.row_optimizer else ()

    @property
    def widths(self) -> dict[str, int]:
        """Number of columns of ``weight`` and of each state, by name."""
        return center_widths(self.embedding_size, self.row_optimizer.states if self.row_optimizer else {})

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Type of ``weight`` and of each state, by name; states of one number per row are float32."""
        states = self.row_optimizer.states if self.row_optimizer else {}
        return {
            name: self.center_dtype if is_row else torch.float32 for name, is_row in {"weight": True, **states}.items()
        }

    @property
    def learning_rate(self) -> float | None:
        """The ``lr`` of ``optimizer``; must be set before the first update of the centers."""
        return self.optimizer.param_groups[0]["lr"] if self.optimizer else None

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self.optimizer is None:
            raise AttributeError("PartialFC_V2 has no learning rate: set it in the optimizer of its weight")
        self.optimizer.param_groups[0]["lr"] = value

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self.weight.device if self._store.movable else self._store.device

    @property
    def sample_rate(self) -> float:
        """Fraction of class centers that the next step samples."""
        return self._sample_rate

    @sample_rate.setter
    def sample_rate(self, value: float) -> None:
        if self.sampling_correction and value == 0:
            raise ValueError(NOTHING_TO_CORRECT)
        self.sampler.resize(num_sampled(self.num_local, value, "sample_rate"))
        self._sample_rate = value

    def sample(self, global_label: torch.Tensor) -> torch.Tensor:
        """Samples the classes of a step. Users may replace this method.

        The sample must contain every positive, unless ``requires_positives`` is set to False: labels whose center is
        missing are then ignored, and rows without any label have no loss and no gradient, but still count in the mean
        over the G rows.

        Args:
            global_label: (G*P,) int64 on the device of the centers. Some are out of range if an item has fewer than P
                labels, or if a batch is invalid or its size has changed: the ranks find out later, and then raise an
                error or repeat the step.

        Returns:
            Sorted local indices (S,) int64 on the same device.
        """
        sampler, device = self.sampler, global_label.device
        if sampler.num_sample >= self.num_local:
            return torch.arange(self.num_local, device=device)
        # The positives may exceed the sample, or are added to it; the host must count them.
        if len(global_label) > sampler.num_sample or isinstance(sampler, WeightedSampler):
            return to_device(sampler(self.exchange.to_host(global_label).numpy())[0], device)
        drawn, order = sampler.draw(len(global_label))
        if device.type == "cpu":  # NumPy sorts nearly sorted arrays ten times as fast as PyTorch
            local_labels = self.exchange.to_host(global_label).numpy() - self.class_start
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
            local_labels: (B,) integers in 0..C-1; or (B, P) for items with several labels, -1 where an item has fewer.
                Repeated labels of an item count once. An item without any label has no loss and no gradient, but
                counts in the mean.

        Returns:
            Scalar, the same on every rank.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: On every rank, see StepComputation.forward.
            TypeError: ``weight`` was converted to a type other than float32 or float64.
        """
        parameters = self.objective.trained()
        return _MeanLoss.apply(self._on_device(local_embeddings), self.weight, local_labels, self, *parameters)

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Trains the centers on one batch.

        Args:
            features: (B, E) of this rank; B must be the same on all ranks. Need not be detached from its graph.
            labels: (B,) or (B, P), see `forward`.

        Returns:
            gradient: (B, E), R times the gradient of the mean loss with respect to ``features``, in the type of the
                centers. Call ``features.backward(gradient)``; DistributedDataParallel's average over the ranks is then
                the gradient of the mean loss.
            loss: mean loss over the global batch, a scalar on the CPU.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: On every rank, see StepComputation.forward;
                no center has changed.
        """
        step = self._forward_step(self._on_device(features.detach()), labels, ahead=True)
        gradient = self._backward_step(step)[0].to(features.device)
        return gradient, torch.tensor(step.loss, dtype=gradient.dtype)  # on the CPU, so that reading it never waits

    def synchronize(self) -> None:
        """Waits until ``weight`` and the states contain the last update.

        With ``on_host``, or with ``folder`` and a GPU, call it before reading them outside of a step; ``state_dict``
        does. Change them only with `copy_rows` or ``load_state_dict``, because rows of the next step may already have
        been copied.
        """
        self._store.synchronize()

    def rows(self, field: str) -> torch.Tensor:
        """Returns "weight" or a state, detached, after the last update."""
        self.synchronize()
        rows: torch.Tensor = getattr(self, field).detach()
        return rows

    def copy_rows(self, field: str, blocks: Blocks) -> None:
        """Writes blocks of consecutive rows to "weight" or a state, see rate_limited."""
        self._store.invalidate()
        rows, progress = getattr(self, field).detach(), self.collectives.report_progress
        for row, values in rate_limited(blocks, field, len(rows), lambda: self._store.flush(field), progress):
            rows[row : row + len(values)] = torch.from_numpy(values)

    def _prepare_sample(self) -> None:
        if self.sampling_correction and getattr(self.sample, "__func__", None) is not ClassCenters.sample:
            raise ValueError(UNKNOWN_PROBABILITIES)
        if self._store.samples_on_host:
            self._prefetch()  # before the first step, too, so that a resumed training has its rows in the same order

    def _draw(self, labels: torch.Tensor) -> Drawn:
        """Samples the centers of a step.

        Args:
            labels: (..., P) int64, the labels of all ranks.
        """
        count = self.sub_centers
        on_store = (self.exchange.to_host(labels) if self._store.samples_on_host else labels).flatten()
        index = self.sample(on_store)
        sampled = self._store.load(self._centers(), rows_of_classes(index, count))
        if not len(index):
            return Drawn(sampled, torch.full_like(labels, -1), None)
        columns = label_columns(on_store, index, self.class_start, torch)
        if sampled.order is not None:  # the store keeps the sub-centers of a class together
            columns = torch.where(columns < 0, columns, sampled.order[::count][columns] // count)
        weights = None
        if self.sampling_correction and len(index) < self.num_local:
            is_drawn = torch.ones(len(index) + 1, dtype=torch.bool, device=columns.device)
            is_drawn[columns] = False  # a column of -1 sets the additional last element
            weights = to_device(self._log_weights(is_drawn[:-1], index), labels.device)
        return Drawn(sampled, to_device(columns, labels.device).view(labels.shape), weights)

    def _log_weights(self, is_drawn: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Returns the logarithms of the weights (S,) of the classes ``index``, of which some were drawn."""
        sampler = self.sampler
        if not isinstance(sampler, WeightedSampler):
            return log_weights(is_drawn, self.num_local, torch)
        if self._log_weights_of is not sampler.log_weights:
            self._log_weights_of = sampler.log_weights
            self._log_weights_on_device = to_device(sampler.log_weights, index.device)
        return torch.where(is_drawn, self._log_weights_on_device[index], 0.0)

    def _forward_step(self, features: torch.Tensor, labels, ahead: bool = False, drawn: Drawn | None = None) -> Step:
        """Computes the loss of a step, see StepComputation.forward.

        Args:
            features: (B, E) on the device, without a graph.
            labels: see `forward`.
            ahead: whether to begin the backward pass before the loss is checked.
            drawn: the centers of the step; None draws them.
        """
        if self.exchange.agreed is None:
            self.exchange.refusal = self._copied()
        if drawn is None:
            self._prepare_sample()
        before = Snapshot(self)
        with before.restored_on_error(), self._full_precision():
            for _ in range(2):
                batch = self.exchange.gather_batch(features, labels)
                centers = drawn or self._draw(batch.labels)
                step = self._computation.forward(batch, centers, self.num_update + 1, self.requires_positives, ahead)
                if step is not None:
                    break
                # The ranks have agreed on another batch size. The repetition must be the step that a training resumed
                # here would make: it draws the same classes and counts the batch once in the margin's statistics.
                before.restore()
                self.exchange.agree_on_batch(features, labels)
            else:
                raise RuntimeError("the ranks have agreed on the batch, but a rank's batch is still another one")
        if not self.update_in_backward:  # accumulated gradients share one sample of negatives
            self._sampler_after_step = self.sampler.state()
            self.sampler.restore(before.sampler)
        return step

    def _copied(self) -> ValueError | None:
        """Returns an error if DistributedDataParallel has overwritten the centers with the centers of rank 0."""
        if int(self._rank) == self.exchange.rank:
            return None
        return ValueError(
            "DistributedDataParallel has copied rank 0's class centers to this rank, where other classes are: wrap the "
            "backbone alone, or call partial_fc.exclude_from_ddp(model) before the model is wrapped"
        )

    def _backward_step(
        self, step: Step, factor: torch.Tensor | float = 1.0
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Computes the gradients of a step, and passes on or applies those that the layer itself uses.

        Args:
            step: result of `forward_step`.
            factor: factor of the loss; it does not multiply an update in the backward pass.

        Returns:
            R times the mean loss's gradient by the features (B, E), and the gradients of ``weight`` and the objective's
            parameters, each None if the layer updates them.
        """
        sink: GradientSink
        if self.row_optimizer is None:
            sink = DenseGradient(self.weight.detach())
        else:
            sink = self._update(step.sampled) if self.update_in_backward else RowGradient(step.sampled)
        with self._full_precision():
            d_features = self._computation.backward(step, sink).mul_(factor)
        parameters = [each * factor for each in step.by_parameters]
        if isinstance(sink, DenseGradient):
            self._end_update(step.sampled)
            return d_features, [sink.gradient.mul_(factor), *parameters]
        if isinstance(sink, RowGradient):
            assert self.optimizer is not None
            index, gradient = sink.in_order()
            self.optimizer.accumulate(index, gradient.mul_(factor), parameters)
        else:
            if step.by_parameters and self.optimizer:
                self.optimizer.update_parameters(step.by_parameters)
            self._end_update(step.sampled)
        return d_features, [None] * (1 + len(parameters))

    def _open_store(self, folder: str | None, on_host: bool, make_store, device: torch.device) -> CenterStore:
        rows = self.num_local * self.sub_centers
        if not rows:
            return CenterStore(0, device)
        store: CenterStore = make_store(rows, torch.device("cpu") if on_host else device)
        if folder:
            store = FileStore(rows, folder, self.widths, self.dtypes, self.collectives.local_size)
        if not on_host and store.device == device:
            return store
        return HostStore(store, device, cores_of_rank(self.collectives.local_size))

    def _allocate(self, name: str) -> torch.Tensor:
        """Returns the array of ``weight`` or of a state; a store of the user's may have float32 alone."""
        width, dtype, store = self.widths[name], self.dtypes[name], self._store
        array = store.allocate(name, width) if dtype == torch.float32 else store.allocate(name, width, dtype)
        if array.dtype != dtype:
            raise ValueError(f"the store has {name} in {array.dtype}, not in center_dtype={dtype}")
        return array

    def _centers(self) -> Centers:
        return Centers(self.weight.detach(), {name: getattr(self, name) for name in self.states})

    def _on_device(self, features: torch.Tensor) -> torch.Tensor:
        kind, products = self.weight.dtype, self._computation.loss.products.dtype
        if kind not in (torch.float32, torch.float64, self.center_dtype):
            raise TypeError(
                f"the centers are {kind}, but must be float32 or float64, in which the labels are sent, too: set "
                "layer_dtype for faster products"
            )
        if kind == torch.float64 and products in ("bfloat16", "float16"):
            raise TypeError(
                f"the centers are {kind}, but must be float32 with layer_dtype={products}: set layer_dtype=float32"
            )
        if kind == torch.bfloat16:
            for name, buffer in self.named_buffers():  # ``to`` converts all of them
                if is_narrow(buffer) and self.dtypes.get(name) != kind:
                    raise TypeError(f"{name} is {kind}, but must be float32: do not convert a layer to {kind}")
        return features.to(self.device, computed_type(self.weight))

    def _full_precision(self) -> AbstractContextManager[None]:
        """Returns a context that disables the caller's autocast, which would change the type of the products."""
        return torch.autocast(self.device.type, enabled=False)

    def _update_rows(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Updates the centers of an explicit step, see CenterOptimizer."""
        sampled = self._store.load(self._centers(), index)
        self.sampler.restore(self._sampler_after_step)
        self._apply_gradient(sampled, gradient)

    def _apply_gradient(self, sampled: StepCenters, gradient: torch.Tensor) -> None:
        """Updates centers with their gradient, in order of their local rows; overwrites the gradient."""
        update = self._update(sampled)
        for tile in tiles_of_gradient(sampled, gradient):
            update.add(tile)
        self._end_update(sampled)

    def _end_update(self, sampled: StepCenters) -> None:
        if sampled.local_rows is not None:  # the updated rows are copies, which are written back
            increment_version(self.weight)  # makes the backward pass of an earlier forward pass raise an error
            self._store.save(self._centers(), sampled)
        self.num_update += 1
        self._prefetch()  # runs while the backbone computes

    def _prefetch(self) -> None:
        """Starts to draw the classes of the next step, if not already done, and announces their rows to the store."""
        if self.sampler.num_sample < self.num_local or self._store.samples_on_host:
            drawn, count = self.sampler.begin_draw(), self.sub_centers
            self._store.prefetch(self._centers(), lambda: rows_of_classes(drawn.result(), count))

    def _update(self, sampled: StepCenters) -> RowUpdate:
        """Returns the update of the centers of a step."""
        if self.row_optimizer is None or self.learning_rate is None:
            raise ValueError(
                "the layer has no learning rate: give it lr=..., or set its attribute learning_rate. It updates its "
                "centers itself; other optimizers do not move them"
            )
        if self.center_dtype == torch.bfloat16:
            copied, device = sampled.local_rows, sampled.weight.device
            local_rows = None if copied is None else to_device(copied, device)
            sampled.rounding = Rounding(self._seed, self.num_update, self.class_start * self.sub_centers, local_rows)
        return RowUpdate(self.row_optimizer, sampled, self.learning_rate)

    def _apply(self, *arguments, **options):
        if not self._store.movable:
            raise ValueError("the centers are on the host: the layer cannot move to another device or type")
        return super()._apply(*arguments, **options)

    def extra_repr(self) -> str:
        """Returns the sizes of the layer for its ``repr``."""
        last = self.class_start + self.num_local - 1
        parts = {
            "num_classes": f"{self.num_classes} (on this rank {self.class_start}..{last})",
            "embedding_size": self.embedding_size,
            "sample_rate": self.sample_rate,
            "sub_centers": self.sub_centers,
            "optimizer": type(self.row_optimizer).__name__,
        }
        return ", ".join(f"{name}={value}" for name, value in parts.items())

    def get_extra_state(self) -> torch.Tensor:
        """Returns the part of this rank's ``state_dict`` that is not an array, as JSON in uint8."""
        state = {"classes": self._classes(), "num_update": self.num_update, "sampler": self.sampler.state()}
        return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Continues from the return value of `get_extra_state`.

        Raises:
            ValueError: The state is of another rank, or of another number of ranks.
        """
        saved = json.loads(state.cpu().numpy().tobytes())
        if saved["classes"] != self._classes():
            raise ValueError(
                "the state_dict has {} centers from class {} of {}".format(*saved["classes"])
                + ", this rank has {} from class {} of {}".format(*self._classes())
                + ": load the state_dict of this rank, or use ShardedState to change the number of ranks"
            )
        self.num_update = saved["num_update"]
        self.sampler.restore(saved["sampler"])

    def _classes(self) -> list[int]:
        return [self.num_local, self.class_start, self.num_classes]

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, *arguments):
        self._store.invalidate()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *arguments)
        if prefix + "_extra_state" in missing_keys:  # arcface_torch saves only the centers
            missing_keys.remove(prefix + "_extra_state")

    def _save_to_state_dict(self, *arguments):
        self.synchronize()
        super()._save_to_state_dict(*arguments)


class Snapshot:
    """What a step changes before its loss is checked: the state of the sampler, and the buffers of the loss.

    Attributes:
        sampler: state of the layer's sampler.
    """

    def __init__(self, layer: ClassCenters):
        self._sampler, self.sampler = layer.sampler, layer.sampler.state()
        buffers = [*layer.margin.buffers(), *layer.objective.buffers()]
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        """Restores the state of the layer at which the snapshot was taken."""
        self._sampler.restore(self.sampler)
        for buffer, before in self._buffers:
            buffer.copy_(before)

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """A context that restores the state after an error: NaN features may have made the buffers NaN."""
        try:
            yield
        except Exception:
            self.restore()
            raise


def rows_of_classes(index, sub_centers: int):
    """Returns the rows (S*K,) of the sub-centers of classes with local indices (S,), a tensor or an array."""
    if sub_centers == 1:
        return index
    numbers = torch.arange(sub_centers, device=index.device) if isinstance(index, torch.Tensor) else range(sub_centers)
    return (index[:, None] * sub_centers + numbers).reshape(-1)


def _center_dtype(value: torch.dtype | str) -> torch.dtype:
    name = str(value).removeprefix("torch.")
    if name not in CENTER_DTYPES:
        raise ValueError(f"center_dtype is {name}, expected {' or '.join(CENTER_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


class _MeanLoss(torch.autograd.Function):
    """The mean loss of a step, with its gradients by the features and, for PartialFC_V2, by centers and parameters."""

    @staticmethod
    def forward(ctx, features, weight, labels, layer, *parameters):
        ctx.layer, ctx.step = layer, layer._forward_step(features, labels)
        ctx.save_for_backward(weight)
        return features.new_full((), ctx.step.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss):
        _ = ctx.saved_tensors  # reading it raises an error if the centers have changed since the forward pass
        d_features, (d_weight, *d_parameters) = ctx.layer._backward_step(ctx.step, d_loss)
        return d_features, d_weight, None, None, *d_parameters


def _require_process_group() -> None:
    started = rank_info(os.environ).size
    if started > 1 and default_collectives.size == 1:
        raise ValueError(
            f"the launcher started {started} processes, but there is no process group: call "
            "torch.distributed.init_process_group before the layer is built"
        )
