"""Compares the kernels with PyTorch's operators on the card in use: their results, and their time.

The comparison runs every kernel in the form in which the training runs it: Triton compiles a kernel for the values of
its constants, for arguments that are None, and for integers that are divisible by 16. The kernels exclude integers for
which the latter may differ between two steps (`do_not_specialize`).

With the unit roundoff u of the operands (see products.py), rounding errors of independent signs change a cosine of unit
rows by about u / sqrt(E), and a logit and the probabilities in a gradient by s u / sqrt(E). Rounding the probabilities
changes a gradient by another u. The bound is 4 times the sum of both; emulated operands err by at most the sum.

Shapes: G batch, N centers, S centers of a step, E embedding.
"""

from __future__ import annotations

import copy
import time
from types import SimpleNamespace
from typing import Any, cast

import torch

from partial_fc.layer.center_states import center_widths

from ..exchange import LayerExchange
from ..gradients import DenseGradient, GradientSink
from ..optimizers import RowOptimizer, RowUpdate
from ..rows import StepCenters, TileGradient, inverse_norms
from ..step import Drawn, Step, StepComputation
from ..torch_passes import TorchPasses
from .choice import Form
from .triton_passes import TritonPasses

# Unit roundoff of each type; of TF32, as hardware may truncate. For float32, of its sums in another order.
ROUNDOFF = {"float32": 1e-6, "tf32": 2.0**-10, "bfloat16": 2.0**-8, "float16": 2.0**-11}
UPDATE_BOUND = 1e-4  # for updates with the same gradient, which differ in the order of float32 operations
THIS_PROCESS: Any = SimpleNamespace(rank=0, size=1)  # as collectives: the checks exchange nothing


@torch.no_grad()
def require_agreement(kernels: TritonPasses, form: Form, embedding_size: int, optimizer: RowOptimizer | None) -> None:
    """Compares two steps.

    Args:
        kernels: passes with the kernels.
        form: of the layer's steps.
        embedding_size: E.
        optimizer: the centers' optimizer; None for a dense gradient.

    Raises:
        ArithmeticError: The results differ by more than the bound.
    """
    bound = 4 * ROUNDOFF[kernels.loss.products.dtype] * (1 + kernels.loss.margin.scale / embedding_size**0.5)
    # Without a logits cache, whose size is determined by the first step of the training.
    reference = TorchPasses(kernels.loss, kernels.tile_classes, 0)
    # More than one block along each axis, and partial blocks.
    problem = _Problem(form, kernels.blocks.batch + 3, 2 * kernels.blocks.classes + 5, embedding_size)
    results, expected = (problem.results(passes) for passes in (kernels, reference))
    for name, value in results.items():
        # A logarithm is compared by its absolute difference.
        unit = torch.ones_like(value) if name == "log_sum_exp" else expected[name]
        _require(name, value - expected[name], unit, bound)
    if optimizer is not None:
        problem.require_update(kernels, optimizer, results["gradient by the centers"])


@torch.no_grad()
def times(candidates: list[TorchPasses | TritonPasses], step: Step, optimizer: RowOptimizer | None) -> list[float]:
    """Returns the seconds of passes for a part of a step, with at most two chunks of the kernels.

    Args:
        candidates: the passes, with at least one TritonPasses.
        step: a step of the layer, for its sizes.
        optimizer: see `require_agreement`.
    """
    form, (batch, embedding_size) = Form.of(step), step.features.unit.shape
    sizes = [
        each.blocks.chunk(batch, embedding_size, each.tile_classes) for each in candidates if each.fused is not None
    ]
    problem = _Problem(form, batch, min(len(step.sampled), 2 * max(sizes)), embedding_size)
    sampled, sink = problem.copies(optimizer)

    def seconds(passes: TorchPasses | TritonPasses) -> float:
        _finish(form.device)
        start = time.perf_counter()
        problem.run(passes, sampled, sink or DenseGradient(problem.weight))
        _finish(form.device)
        return time.perf_counter() - start

    measured = [[seconds(passes) for passes in candidates] for _ in range(4)]  # in turn; the first ones load modules
    return [min(each) for each in zip(*measured[1:])]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _require(name: str, difference: torch.Tensor, unit: torch.Tensor, bound: float) -> None:
    relative = float(difference.norm() / unit.norm())
    if not relative <= bound:  # also if it is NaN
        raise ArithmeticError(f"{name} differs by {relative:.2g} from PyTorch's operators, more than {bound:.2g}")


class _Problem:
    """A step on random numbers, with G rows of a batch and S centers."""

    def __init__(self, form: Form, batch: int, number: int, embedding_size: int):
        self._random, self._device = torch.Generator().manual_seed(0), form.device
        features, stride = self._normal(batch, embedding_size), 2 if form.gathered else 1
        self.weight = 0.05 * self._normal(stride * number, embedding_size)
        self.rows = torch.arange(0, 2 * number, 2, device=form.device) if form.gathered else None
        labels = torch.randint(number, (batch, form.labels_per_item), generator=self._random).to(form.device)
        # Features resemble their centers, as in a training; otherwise the targets would dominate the gradient.
        for column in labels.unbind(1):
            features += 10 / form.labels_per_item * self.weight[stride * column]
        self.exchange = LayerExchange(THIS_PROCESS, number, embedding_size)
        self.exchange.agreed = batch, form.labels_per_item
        self.batch = self.exchange.gather_batch(features, labels)
        self.log_weights = self._normal(number).abs() if form.weighted else None

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random).to(self._device)

    def run(
        self, passes: TorchPasses | TritonPasses, sampled: StepCenters, sink: GradientSink
    ) -> tuple[Step, torch.Tensor]:
        """Returns a step after its forward pass, and its gradient by the features."""
        loss = passes.loss._replace(
            margin=copy.deepcopy(passes.loss.margin).eval(), objective=copy.deepcopy(passes.loss.objective)
        )
        computation = StepComputation(loss, self.exchange, cast(TorchPasses, passes))
        step = computation.forward(self.batch, Drawn(sampled, self.batch.labels, self.log_weights), 1)
        assert step is not None
        return step, computation.backward(step, sink)

    def results(self, passes: TorchPasses | TritonPasses) -> dict[str, torch.Tensor]:
        """Returns the results of both passes, by name."""
        by_centers = DenseGradient(self.weight)
        step, by_features = self.run(passes, StepCenters(self.weight, {}, self.rows), by_centers)
        return {
            "log_sum_exp": step.row_term,
            "gradient by the features": by_features,
            "gradient by the centers": by_centers.gradient,
        }

    def copies(self, optimizer: RowOptimizer | None) -> tuple[StepCenters, RowUpdate | None]:
        """Returns copies of the centers with states of an optimizer, and their update; None without an optimizer."""
        if optimizer is None:
            return StepCenters(self.weight, {}, self.rows), None
        _, *widths = center_widths(self.weight.shape[1], optimizer.states).items()
        states = {name: 0.01 * torch.ones_like(self.weight[:, :width]) for name, width in widths}
        centers = StepCenters(self.weight.clone(), states, self.rows)
        return centers, RowUpdate(optimizer, centers, 0.1)

    def require_update(self, kernels: TritonPasses, optimizer: RowOptimizer, gradient: torch.Tensor) -> None:
        """Compares the kernel's update with the optimizer's, given the same gradient."""
        (updated, by_kernel), (expected, update) = self.copies(optimizer), self.copies(optimizer)
        assert by_kernel is not None and update is not None
        for name, state in expected.states.items():
            updated.states[name].copy_(state.copy_(0.01 * self._normal(*state.shape).square()))
        self.run(kernels, updated, by_kernel)
        index = slice(0, len(self.weight)) if self.rows is None else self.rows
        at = expected.weight[index]
        update.add(TileGradient(index, at, inverse_norms(at), gradient[index], scale=1.0))
        _require("update of the centers", updated.weight - expected.weight, expected.weight - self.weight, UPDATE_BOUND)
        for name, state in updated.states.items():
            _require(name, state - expected.states[name], expected.states[name], UPDATE_BOUND)
