"""Compares the kernels with PyTorch's operators on the card in use.

With the unit roundoff u of the operands (see products.py), rounding errors of independent signs change a cosine of unit
rows by about u / sqrt(E), and a logit and the probabilities in a gradient by s u / sqrt(E). Rounding the probabilities
changes a gradient by another u. The bound is 4 times the sum of both; emulated operands err by at most the sum.

Shapes: G batch, N centers, S centers of a step, E embedding.
"""

import copy
from types import SimpleNamespace
from typing import Any, cast

import torch

from partial_fc.layer.center_states import center_widths

from ..exchange import LayerExchange
from ..gradients import DenseGradient, GradientSink
from ..optimizers import RowOptimizer, RowUpdate
from ..rows import Centers, StepCenters, TileGradient, inverse_norms
from ..step import Drawn, Step, StepComputation
from ..torch_passes import TorchPasses
from .triton_passes import TritonPasses

UPDATE_BOUND = 1e-4  # for updates with the same gradient, which differ in the order of float32 operations
THIS_PROCESS: Any = SimpleNamespace(rank=0, size=1)  # as collectives: the checks exchange nothing


@torch.no_grad()
def require_agreement(
    fused: TritonPasses,
    device: torch.device,
    embedding_size: int,
    labels_per_item: int,
    optimizer: RowOptimizer | None,
) -> None:
    """Compares a step with all centers and a step with sampled centers.

    Args:
        fused: passes with the kernels.
        device: the layer's device.
        embedding_size: E.
        labels_per_item: P.
        optimizer: the centers' optimizer; None for a dense gradient.

    Raises:
        ArithmeticError: The results differ by more than the bound.
    """
    roundoff = 2.0**-8 if fused.is_half else 2.0**-10
    bound = 4 * roundoff * (1 + fused.loss.margin.scale / embedding_size**0.5)
    # Without a logits cache, whose size is determined by the first step of the training.
    reference = TorchPasses(fused.loss, fused.tile_classes, 0)
    for every in (True, False):
        problem = _Problem(fused, device, embedding_size, labels_per_item, every)
        results, expected = (problem.results(passes) for passes in (fused, reference))
        for name, value in results.items():
            # A logarithm is compared by its absolute difference.
            unit = torch.ones_like(value) if name == "log_sum_exp" else expected[name]
            _require(name, value - expected[name], unit, bound)
        if optimizer is not None:
            problem.require_update(fused, optimizer, results["gradient by the centers"])


def _require(name: str, difference: torch.Tensor, unit: torch.Tensor, bound: float) -> None:
    relative = float(difference.norm() / unit.norm())
    if not relative <= bound:  # also if it is NaN
        raise ArithmeticError(f"{name} differs by {relative:.2g} from PyTorch's operators, more than {bound:.2g}")


class _Problem:
    """A step on random numbers, with more than one block along each axis, and partial blocks."""

    def __init__(self, fused: TritonPasses, device: torch.device, embedding_size: int, count: int, every: bool):
        self._random, self._device = torch.Generator().manual_seed(0), device
        batch, number = fused.blocks.batch + 3, 2 * fused.blocks.classes + 5
        features = self._normal(batch, embedding_size)
        self.weight = 0.05 * self._normal(number if every else 2 * number, embedding_size)
        self.rows = None if every else torch.arange(0, 2 * number, 2, device=device)
        labels = torch.randint(number, (batch, count), generator=self._random).to(device)
        # Features resemble their centers, as in a training; otherwise the targets would dominate the gradient.
        for column in labels.unbind(1):
            features += 10 / count * self.weight[column if every else 2 * column]
        self.exchange = LayerExchange(THIS_PROCESS, number, embedding_size)
        self.exchange.agreed = batch, count
        self.batch = self.exchange.gather_batch(features, labels)
        self.log_weights = None if every else self._normal(number).abs()

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

    def require_update(self, fused: TritonPasses, optimizer: RowOptimizer, gradient: torch.Tensor) -> None:
        """Compares the kernel's update with the optimizer's, given the same gradient."""
        _, *widths = center_widths(self.weight.shape[1], optimizer.states).items()
        states = {name: 0.01 * self._normal(len(self.weight), width).square() for name, width in widths}
        copies = {name: state.clone() for name, state in states.items()}
        updated = StepCenters(self.weight.clone(), copies, self.rows)
        self.run(fused, updated, RowUpdate(optimizer, updated, 0.1))
        expected, rows = Centers(self.weight.clone(), states), self.rows
        index = slice(0, len(self.weight)) if rows is None else rows
        at = expected.weight[index]
        tile = TileGradient(index, at, inverse_norms(at), gradient[index], scale=1.0)
        RowUpdate(optimizer, expected, 0.1).add(tile)
        _require("update of the centers", updated.weight - expected.weight, expected.weight - self.weight, UPDATE_BOUND)
        for name, state in updated.states.items():
            _require(name, state - expected.states[name], expected.states[name], UPDATE_BOUND)
