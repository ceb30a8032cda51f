"""Compares the kernels with PyTorch's operators on the card in use.

With the unit roundoff u of the operands (see products.py), rounding errors of independent signs change a cosine of unit
rows by about u / sqrt(E), and a logit and the probabilities in a gradient by s u / sqrt(E). Rounding the probabilities
changes a gradient by another u. The bound is 4 times the sum of both; emulated operands err by at most the sum.

Shapes: G batch, N centers, S centers of a step, E embedding.
"""

import copy

import torch

from partial_fc.layer.center_states import center_widths

from ..gradients import DenseGradient, GradientSink
from ..optimizers import RowOptimizer, RowUpdate
from ..passes import Labels, Passes, Step
from ..products import Features, Float32Products
from ..rows import Centers, TileGradient, inverse_norms
from ..step import negative_weights
from ..stores import StepCenters
from ..torch_passes import TorchPasses
from .triton_passes import TritonPasses

UPDATE_BOUND = 1e-4  # for updates with the same gradient, which differ in the order of float32 operations


@torch.no_grad()
def require_agreement(
    of_torch: TorchPasses,
    fused: TritonPasses,
    device: torch.device,
    embedding_size: int,
    optimizer: RowOptimizer | None,
) -> None:
    """Compares a step with all centers and a step with sampled centers.

    Args:
        of_torch: passes with PyTorch's operators.
        fused: passes with the kernels.
        device: the layer's device.
        embedding_size: E.
        optimizer: the centers' optimizer; None for a dense gradient.

    Raises:
        ArithmeticError: The results differ by more than the bound.
    """
    single = isinstance(of_torch.products, Float32Products)
    roundoff = 2.0**-10 if single else 2.0**-8
    bound = 4 * roundoff * (1 + of_torch.margin.scale / embedding_size**0.5)
    # Without a logits cache, whose size is determined by the first step of the training.
    reference = TorchPasses(of_torch.margin, of_torch.objective, of_torch.products, of_torch.tile_classes, 0)
    for every in (True, False):
        problem = _Problem(fused, device, embedding_size, every)
        results, expected = (problem.gradients(passes) for passes in (fused, reference))
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

    def __init__(self, fused: TritonPasses, device: torch.device, embedding_size: int, every: bool):
        self._random = torch.Generator().manual_seed(0)
        self._device, self._every = device, every
        batch, number = fused.blocks.batch + 3, 2 * fused.blocks.classes + 5
        self.features = self._normal(batch, embedding_size)
        self.weight = 0.05 * self._normal(number if every else 2 * number, embedding_size)
        # Features resemble their centers, as in a training; otherwise the targets would dominate the gradient.
        self.columns = torch.randint(number, (batch,), generator=self._random).to(device)
        rows = self.columns if every else 2 * self.columns
        self.features += 10 * self.weight[rows]
        self.rows = None if every else torch.arange(0, 2 * number, 2, device=device)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random).to(self._device)

    def begin(self, passes: TorchPasses | TritonPasses, states: dict[str, torch.Tensor]) -> Step:
        """Returns the step after its forward pass."""
        margin, objective = copy.deepcopy(passes.margin).eval(), passes.objective
        sampled = StepCenters(Centers(self.weight.clone(), states), self.rows)
        features = Features(self.features, passes.products)
        columns = self.columns[:, None]
        inverse = inverse_norms(self.weight)[self.columns if self._every else 2 * self.columns]
        centers = self.weight[self.columns if self._every else 2 * self.columns]
        cosine = ((features.unit * centers).sum(dim=1) * inverse).double()[:, None]
        held, number = torch.ones_like(columns, dtype=torch.bool), len(sampled)
        labels = Labels(columns, held, columns, inverse[:, None], cosine)
        targets = margin.of_labels(cosine, features.inverse_norm.double().reciprocal(), columns)
        weights = None if self._every else negative_weights(columns, number, 2 * number)
        step = Step(sampled, features, labels, targets, log_weights=weights)
        sums, logits = passes.statistics(step), margin.scale * targets.value
        self.negatives = objective.term.negatives(sums)
        losses = objective.losses(sums, logits, margin.scale * cosine, held)
        step.row_term = objective.term.row_term(self.negatives, losses.by_negatives)
        by_labels = losses.by_targets * targets.by_cosine
        by_cosines = 0.0 if losses.by_cosines is None else losses.by_cosines
        step.d_labels = (by_labels + by_cosines).to(features.unit.dtype)
        return step

    def backward(self, passes: Passes, step: Step, sink: GradientSink) -> torch.Tensor:
        """Returns the gradient by the features."""
        passes.start_gradients(step)
        for number in range(passes.num_tiles(step)):
            passes.add_feature_gradient(step, number)
            passes.add_center_gradient(step, number, sink)
        return passes.feature_gradient(step)

    def gradients(self, passes: TorchPasses | TritonPasses) -> dict[str, torch.Tensor]:
        """Returns the results of both passes, by name."""
        step = self.begin(passes, {})
        by_centers = DenseGradient(self.weight)
        by_features = self.backward(passes, step, by_centers)
        return {
            "log_sum_exp": self.negatives,
            "gradient by the features": by_features,
            "gradient by the centers": by_centers.gradient,
        }

    def require_update(self, fused: Passes, optimizer: RowOptimizer, gradient: torch.Tensor) -> None:
        """Compares the kernel's update with the optimizer's, given the same gradient."""
        assert isinstance(fused, TritonPasses)
        _, *widths = center_widths(self.weight.shape[1], optimizer.states).items()
        states = {name: 0.01 * self._normal(len(self.weight), width).square() for name, width in widths}
        step = self.begin(fused, {name: state.clone() for name, state in states.items()})
        updated = step.sampled.centers
        self.backward(fused, step, RowUpdate(optimizer, updated, 0.1))
        expected, rows = Centers(self.weight.clone(), states), self.rows
        index = slice(0, len(self.weight)) if rows is None else rows
        at = expected.weight[index]
        tile = TileGradient(index, at, inverse_norms(at), gradient[index], scale=1.0)
        RowUpdate(optimizer, expected, 0.1).add(tile)
        update = expected.weight - self.weight
        _require("update of the centers", updated.weight - expected.weight, update, UPDATE_BOUND)
        for name, state in updated.states.items():
            _require(name, state - expected.states[name], expected.states[name], UPDATE_BOUND)
