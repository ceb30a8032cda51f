"""TorchEngine: a backbone and PartialFC in training, see partial_fc.training.engine.Engine.

Shapes: B local batch, R ranks, N items, E embedding.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.backbone import AVERAGE, MEAN, MEAN_WINDOW
from partial_fc.checkpoint.model_format import TORCH
from partial_fc.checkpoint.torch_names import with_torch_names
from partial_fc.data.batch import Batch, Inputs, map_inputs
from partial_fc.distributed.errors import errors_of_head
from partial_fc.utils.text import some

from . import weights
from .averaged import AveragedBackbone, EpochMean, WeightAverage
from .backbones import Backbone
from .bank import TorchBank
from .batches import Tensors, as_tensors, micro_batches
from .collectives import average_tensors
from .layer.accumulation import Accumulation
from .layer.margins import Margin
from .loss_scaling import LossScaling
from .memory_format import format_of
from .optimizers import BackboneOptimizer, build_optimizer
from .partial_fc import PartialFC
from .pixels import normalized
from .teacher import Distillation

Arrays = dict[str, np.ndarray]
Rates = tuple[float, ...]  # of the backbone, and of the centers of each head

LOSS_PARTS = "margin", "objective"  # attributes of the layer with a state; followed by a colon, prefixes in checkpoints


class LayerHead(NamedTuple):
    """A layer that trains the backbone, alone or beside others."""

    name: str
    layer: PartialFC
    weight: float = 1.0  # factor of the gradient that the backbone gets from it
    # Maps the number of an update, counted from 1, to a margin, whose arguments the layer's margin then takes.
    margins: Callable[[int], Margin] | None = None


def _exchange_attribute(name: str) -> Any:
    """Returns a property of the engine that reads and sets an attribute of its layer's exchange."""

    def set_value(engine: "TorchEngine", value: Any) -> None:
        setattr(engine.layer.exchange, name, value)

    return property(lambda engine: getattr(engine.layer.exchange, name), set_value)


class TorchEngine:
    """Trains a backbone with DistributedDataParallel and PartialFC.

    Collectives of a step: those of PartialFC, and the all-reduces of the gradients, which DistributedDataParallel
    overlaps with the backward pass.

    Args:
        model: the return value of ``data_parallel(backbone, layer)``.
        layer: PartialFC on the same device.
        rates: maps the number of an update, counted from 1, to the learning rates of the backbone and of the centers of
            each head.
        network: name of the backbone; determines how MXNet's arrays are renamed.
        optimizer: builds the optimizer of the backbone, see build_optimizer.
        momentum_convention: whether SGD's momentum sums gradients or steps, for backbone and centers; see SGDParams.
        max_grad_norm: clips the gradients of the backbone to this global norm; 0 disables clipping.
        autocast: computes the backbone in float16 or bfloat16; None computes in float32. Parameters stay float32.
        gradient_acc: number of micro-batches into which `step` divides a batch.
        ema_decay: decay of a moving average of the backbone's weights; 0 keeps no average.
        last_ends: the first of the last epochs, and the updates with which they end, for the mean of the weights over
            them, see Epochs.last_ends; None keeps no mean.
        frozen: modules of the backbone that stay in evaluation mode, see frozen_modules.
        pixels: whether inputs are RGB pixels (B, 3, H, W) uint8, which the engine normalizes. Other inputs are passed
            to the backbone unchanged.
        compiled: trains the backbone through torch.compile; everything else uses the uncompiled module.
        heads: several layers, of which the first is ``layer``. A step then takes a list with a batch for each, adds
            their weighted gradients of the backbone, and averages the sum over the ranks once. The centers of a head
            get the gradient of its own loss, without the weight. None is ``layer`` alone.
        distillation: adds a teacher's loss to the layer's loss, for one head; None for no teacher.
            ``head_losses`` then has the losses "softmax" and "teacher", without their weights.
        facts: see Engine.

    Attributes:
        backbone: the module without DistributedDataParallel.
        heads: all layers; ``layer`` is the first one's.
        memory_bank: see TorchBank.
        banks: the TorchBank of each head, see Engine.
        loss_scale: the scale of float16, else None; see LossScaling and `wait_for_update`. An overflow
            skips the update of the backbone only: the centers' update uses finite features and float32.
        averaged: AveragedBackbone, or None.
        mean: EpochMean, or None.
        Others: see partial_fc.training.engine.Engine.
    """

    draws_random_numbers = True  # a user's backbone may use dropout
    rank_flags = _exchange_attribute("rank_flags")
    all_rank_flags = _exchange_attribute("all_rank_flags")

    def __init__(
        self,
        model: nn.Module,
        layer: PartialFC,
        rates: Callable[[int], Rates],
        network: str = "",
        *,
        optimizer: Callable[[nn.Module], BackboneOptimizer] = build_optimizer,
        momentum_convention: str = "gradients",
        max_grad_norm: float = 0.0,
        autocast: torch.dtype | None = None,
        gradient_acc: int = 1,
        pixels: bool = True,
        compiled: bool = False,
        ema_decay: float = 0.0,
        last_ends: tuple[int, Sequence[int]] | None = None,
        frozen: Sequence[nn.Module] = (),
        heads: Sequence[LayerHead] | None = None,
        distillation: Distillation | None = None,
        facts: Mapping[str, str] = MappingProxyType({}),
    ):
        self._parallel, self._forward = model, torch.compile(model) if compiled else model
        self.backbone = model.module if isinstance(model, DistributedDataParallel) else model
        self.layer, self.rates, self.network, self._frozen = layer, rates, network, frozen
        self.collectives, self.device, self.on_gpu = layer.collectives, layer.device, layer.device.type == "cuda"
        if self.collectives.size > 1 and self.backbone is model:
            raise ValueError("with several ranks, pass what data_parallel(backbone, layer) returns")
        self.heads, self.distillation = heads or [LayerHead("", layer)], distillation
        self.facts = facts
        self._teacher_losses: list[torch.Tensor] = []  # of the micro-batches of a step
        self.banks = {head.name if number else "": TorchBank(head.layer) for number, head in enumerate(self.heads)}
        self.memory_bank = self.banks[""]
        self.head_losses: dict[str, torch.Tensor] = {}
        self.num_classes: int | None = layer.num_classes
        self.pixels, self.max_grad_norm, self.autocast = pixels, max_grad_norm, autocast
        self.momentum_convention, self.gradient_acc = momentum_convention, gradient_acc
        self._scaling = LossScaling(self.collectives) if autocast == torch.float16 else None
        self.loss_scale = self._scaling.scale if self._scaling else None
        self._memory_format = format_of(self.backbone)
        self.optimizer = optimizer(self.backbone)
        self.averaged = AveragedBackbone(self.backbone, ema_decay) if ema_decay else None
        self.mean = EpochMean(self.backbone, *last_ends) if last_ends else None

    @property
    def num_update(self) -> int:
        """Number of updates done."""
        return self.layer.num_update

    @num_update.setter
    def num_update(self, value: int) -> None:
        for head in self.heads:
            head.layer.num_update = value

    @property
    def model_format(self) -> ModelFormat:
        """The conventions of weights and momentum."""
        if not isinstance(self.backbone, Backbone):
            return TORCH._replace(momentum_convention=self.momentum_convention)
        return ModelFormat(self.backbone.eps, self.backbone.pixel_scale, self.momentum_convention)

    @property
    def averages_weights(self) -> bool:
        """See Engine."""
        return self.averaged is not None

    def step(self, batch: Batch | Sequence[Batch]) -> torch.Tensor:
        """Trains on one batch; returns the mean loss over the global batch, possibly before the device is done.

        With several heads, ``batch`` is a list with a batch of each, and the loss the weighted sum of theirs.

        Raises:
            FloatingPointError: On every rank, if the loss is infinite or NaN, or after too many overflows of float16.
            ValueError: With several ranks, if a parameter receives no gradient.
        """
        batches = batch if isinstance(batch, list) else [batch]
        num_update = self.num_update + 1
        learning_rate, *center_rates = self.rates(num_update)
        self._parallel.train()
        for module in self._frozen:
            module.eval()
        self.optimizer.optimizer.zero_grad()
        losses = []
        for head, of_head, center_rate in zip(self.heads, batches, center_rates, strict=True):
            head.layer.learning_rate = center_rate
            with errors_of_head(head.name):
                if head.margins:
                    head.layer.margin.take_options(head.margins(num_update))
                losses.append(self._train_head(head, of_head, is_last=head is self.heads[-1]))
        self._update(learning_rate)
        for average in (self.averaged, self.mean):
            if average:
                average.update(self.num_update)
        parts = [(head.name, head.weight, loss) for head, loss in zip(self.heads, losses)]
        if self.distillation:
            loss, self._teacher_losses = self.distillation.mean_loss(self._teacher_losses), []
            parts = [("softmax", self.heads[0].weight, losses[0]), ("teacher", self.distillation.weight, loss)]
        if len(parts) == 1:
            return losses[0]
        self.head_losses = {name: loss for name, _, loss in parts}
        return torch.stack([weight * loss.to(self.device) for _, weight, loss in parts]).sum()

    def _train_head(self, head: LayerHead, batch: Batch, is_last: bool) -> torch.Tensor:
        """Adds the gradients of the backbone from a head, in micro-batches, and updates its centers; returns its loss.

        The ranks average the sum of all gradients in the last micro-batch of the last head.
        """
        count, parallel, layer = self.gradient_acc, self._parallel, head.layer
        update = Accumulation(layer, batch.labels, count) if count > 1 else None
        inputs = micro_batches(batch.inputs, count) if update else [batch.inputs]
        losses, layer_step = [], update.step if update else layer.step
        for number, part in enumerate(zip(inputs, np.array_split(batch.labels, count)), start=1):
            is_parallel, averages = isinstance(parallel, DistributedDataParallel), is_last and number == len(inputs)
            with parallel.no_sync() if is_parallel and not averages else nullcontext():
                losses.append(self._backward(*part, layer_step, head.weight))
        if update:
            update.update()
        return torch.stack(losses).mean() if update else losses[0]

    def _backward(
        self, inputs: Tensors, labels: np.ndarray, layer_step: Callable[..., Any], weight: float
    ) -> torch.Tensor:
        """Computes the gradients of the backbone, times the loss scale and the weight; returns the mean loss."""
        on_device = self._on_device(inputs)
        with self._autocast():
            features = self._forward(on_device)
        gradient, loss = layer_step(features, labels)
        if self._scaling:
            self._scaling.settle()  # does not wait: the layer has waited for the device after the previous update
        gradient = gradient * (weight * self._scale)
        if self.distillation:
            with self._autocast():
                target = self.distillation.teacher.embed(inputs, on_device)
            of_teacher, teacher_loss = self.distillation.gradient(features, target)
            gradient = gradient + of_teacher * (self._scale / self.gradient_acc)
            self._teacher_losses.append(teacher_loss)
        features.backward(gradient.to(features.dtype))
        return loss

    def _on_device(self, inputs: Tensors) -> Tensors:
        """Copies inputs to the device, and normalizes pixels."""
        inputs = map_inputs(lambda tensor: tensor.to(self.device, non_blocking=True), inputs)
        return normalized(inputs, self._memory_format) if self.pixels else inputs

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()

    @property
    def _scale(self) -> float:
        return self.loss_scale.scale if self.loss_scale else 1.0

    def _update(self, learning_rate: float) -> None:
        """Divides the gradients by the loss scale, clips them, and updates the backbone if they are finite."""
        # DistributedDataParallel skips a bucket that lacks a gradient, and reports it only in the next step.
        without = self.optimizer.without_gradients() if self.collectives.size > 1 else []
        if without:
            raise ValueError(
                f"no gradient reaches {some(without)} of the backbone, so the ranks cannot average the others: use "
                "every parameter for the embeddings, or set its requires_grad to False"
            )
        if self._scale != 1:
            torch._foreach_div_(self.optimizer.gradients(), self._scale)
        if self._scaling or self.max_grad_norm:
            norm = nn.utils.clip_grad_norm_(self.optimizer.parameters, self.max_grad_norm or float("inf"))
        if self._scaling:
            self._scaling.update(self.optimizer, learning_rate, norm, self.num_update)
        else:
            self.optimizer.update(learning_rate)

    def wait_for_update(self) -> None:
        """Waits until the last update is complete and ``loss_scale`` is the scale of the next one."""
        if self.on_gpu:
            with self.collectives.waiting("gradients"):
                torch.cuda.synchronize(self.device)
        if self._scaling:
            self._scaling.settle()

    def embed(self, inputs: Inputs, batch_statistics: bool = False, averaged: bool = False) -> np.ndarray:
        """Embeds N items without training on them: (N, E) float32; see Engine.embed."""
        tensors = self._on_device(as_tensors(inputs))
        with self._with_average(averaged) as backbone:
            backbone.train(batch_statistics)
            saved = [buffer.clone() for buffer in backbone.buffers()] if batch_statistics else []
            with torch.no_grad(), self._autocast():
                embeddings: np.ndarray = backbone(tensors).float().cpu().numpy()
            for buffer, value in zip(backbone.buffers(), saved):  # undoes the forward pass's change of the statistics
                buffer.copy_(value)
        return embeddings

    def _with_average(self, averaged: bool = True) -> AbstractContextManager[nn.Module]:
        """Returns a context with the backbone, in which it has averaged weights if these are requested and exist."""
        return self.averaged.in_backbone() if averaged and self.averaged else nullcontext(self.backbone)

    def final_weights(self) -> AbstractContextManager[nn.Module]:
        """Returns a context in which the backbone has the weights of a finished training, see Engine.final_weights."""
        return self._begun_mean.in_backbone() if self._begun_mean else nullcontext(self.backbone)

    @property
    def _begun_mean(self) -> EpochMean | None:
        return self.mean if self.mean and self.mean.count else None

    def average_statistics(self) -> None:
        """Replaces the running statistics by their mean over the ranks, on every rank (all-reduce ``statistics``)."""
        statistics = list(self.backbone.buffers())
        with self._with_average() as backbone:
            statistics += backbone.buffers() if self.averaged else []
        statistics = [buffer for buffer in statistics if buffer.is_floating_point()]
        if self.collectives.size > 1 and statistics:
            with self.collectives.waiting("all-reduce statistics"):
                average_tensors(statistics, self.collectives.size)

    def nonfinite_parameter(self) -> str | None:
        """Returns the name of a parameter that is infinite or NaN; None if all are finite."""
        parameters = dict(self.backbone.named_parameters())
        finite = torch.stack([torch.isfinite(parameter).all() for parameter in parameters.values()]).tolist()
        return next((name for name, is_finite in zip(parameters, finite) if not is_finite), None)

    def seed_generators(self, seed: int) -> None:
        """Seeds PyTorch's generators, from which the next step draws."""
        # torch.manual_seed takes 0.2 ms, because it records the call stack for each kind of device that is not in use.
        torch.default_generator.manual_seed(seed)
        if self.on_gpu:
            torch.cuda.manual_seed_all(seed)

    def parameters(self) -> Arrays:
        """Returns copies of parameters and states of optimizer and losses on the host, the same on every rank."""
        loss = {
            f"{prefix}{name}": weights.to_array(value)
            for prefix, _, module in self._loss_parts()
            for name, value in module.state_dict().items()
        }
        averages = self._average_arrays(weights.parameter_arrays)
        if self._begun_mean:
            averages[MEAN_WINDOW] = np.array([self._begun_mean.first, self._begun_mean.count])
        return {**weights.parameter_arrays(self.backbone), **self.optimizer.states(), **loss, **averages}

    def statistics(self) -> Arrays:
        """Returns copies of this rank's running statistics on the host."""
        return {**weights.statistic_arrays(self.backbone), **self._average_arrays(weights.statistic_arrays)}

    def _average_arrays(self, arrays_of: Callable[[nn.Module], Arrays]) -> Arrays:
        averages: dict[str, WeightAverage | None] = {AVERAGE: self.averaged, MEAN: self._begun_mean}
        arrays: Arrays = {}
        for prefix, average in averages.items():
            if average:
                with average.in_backbone() as backbone:
                    arrays |= {f"{prefix}{name}": array for name, array in arrays_of(backbone).items()}
        return arrays

    def set_weights(self, arrays: Arrays) -> None:
        """Sets all parameters and running statistics from ``arrays``, see weights.set_weights."""
        weights.set_weights(self.backbone, arrays, self.network)
        if self.averaged:
            self.averaged.reset()

    def restore(self, arrays: Arrays, num_update: int) -> None:
        """Sets parameters, statistics, and states of optimizer and loss from ``arrays``, see Engine.restore.

        If ``arrays`` has no state of this margin or objective, it starts anew: the loss has changed.
        """
        logs = self.collectives.rank == 0
        self.set_weights(arrays)
        thawed = self.optimizer.restore(with_torch_names(self.network, arrays))
        if thawed and logs:
            logging.info("parameters that were frozen before, their optimizer states start anew: %s", some(thawed))

        def with_prefix(prefix: str) -> Arrays:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        for prefix, part, module in self._loss_parts():
            state, saved = module.state_dict(), with_prefix(prefix)
            shapes, saved_shapes = (
                {name: tuple(each.shape) for name, each in values.items()} for values in (state, saved)
            )
            if shapes == saved_shapes:
                module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in saved.items()})
            elif state and logs:
                logging.warning(
                    "the checkpoint has no state of %s (%s), but %s: the %s starts anew",
                    type(module).__name__,
                    some(list(state)),
                    some(list(saved)) or "none",
                    part,
                )
        average = with_prefix(AVERAGE)
        if self.averaged and average:
            with self.averaged.in_backbone() as backbone:
                weights.set_weights(backbone, average, self.network)
        elif self.averaged and logs:
            logging.warning("the checkpoint has no averaged weights: the average starts at update %d", num_update)
        if self.mean:
            first, count = arrays.get(MEAN_WINDOW, (None, 0))
            if first == self.mean.first:
                with self.mean.in_backbone() as backbone:
                    weights.set_weights(backbone, with_prefix(MEAN), self.network)
                self.mean.count = int(count)
            elif logs and any(end <= num_update for end in self.mean.ends):
                logging.warning(
                    "the checkpoint has no mean of the weights from epoch %d on: the mean starts at update %d",
                    self.mean.first,
                    num_update,
                )

    def _loss_parts(self) -> Iterator[tuple[str, str, nn.Module]]:
        """Yields the prefix in checkpoints, the name and the module of each part of the losses with a state."""
        for name, head in zip(self.banks, self.heads):
            for part in LOSS_PARTS:
                module = getattr(head.layer, part)
                kind = f"{type(module).__name__}." if part == "objective" else ""  # several have a bias
                yield f"{name}.{part}:{kind}" if name else f"{part}:{kind}", part, module
