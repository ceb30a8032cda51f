"""A step of Partial FC: this rank's part of one loss over the centers of all ranks.

    gather -> sample -> logits -> margin -> objective over the ranks -> gradients -> update of the centers

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes the
logits of a row's labels, and possibly the others. An objective is a function of two things, which the ranks exchange:
the sum N of a row's negatives, such as log sum exp, over the centers of all ranks, and the logits of its labels.

With the derivative a of a row's loss with respect to N, the gradient with respect to a negative's logit l is
a exp(l - N); with respect to a label's logit, the objective returns it. D is this gradient times the slope of the
margin, and with g = s D^T x the gradient through the normalization of a center is dW = (g - (g.w) w) / |W|; the
gradient of a feature has the same form. The passes compute D and its products without the factor s of a feature's
gradient, which `_sum_over_ranks` multiplies at the end.

Logits exist only for a tile of centers at a time (small layers cache them between both passes), so the memory of a step
does not grow with the number of classes. Labels are left out of the tiles: their logits and gradients are G*P rows, in
float32 whatever the type of the products. No shape depends on values on the device. The host waits for the device once,
to check the loss before any center changes; it has queued the gradient of the first tile before, so the device stays
busy.

Two kinds of indices occur:

* A class has a *column* among the S classes of the step, 0 .. S-1. The K sub-centers of a class, usually one, have the
  *positions* column * K .. column * K + K-1 among the S*K centers of the step.
* ``StepCenters.rows`` maps positions to rows of the arrays that contain the centers.

Shapes: B local batch, R ranks, G = B*R, P labels of an item, C classes, L of this rank, S of them sampled, K
sub-centers, T classes of a tile, E embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.cuda import device_of
from torch.nn.functional import pad

from .exchange import GlobalBatch, LayerExchange
from .margins import Margin, Targets
from .objectives import Objective
from .products import Features, Products
from .rows import StepCenters, dot_rows, gather_rows, inverse_norms, remove_component

if TYPE_CHECKING:
    from .gradients import GradientSink
    from .kernels.choice import Form
    from .kernels.triton_passes import TritonPasses
    from .optimizers import RowOptimizer
    from .torch_passes import TorchPasses

KERNELS = ("auto", "torch", "mm", "triton")


class Loss(NamedTuple):
    """The loss of a layer, and the type in which it is computed."""

    margin: Margin
    objective: Objective
    products: Products
    sub_centers: int = 1  # K


class Drawn(NamedTuple):
    """The centers of a step."""

    sampled: StepCenters
    columns: torch.Tensor  # (G, P) int64, column of each label among the classes of the step, -1 if not on this rank
    log_weights: torch.Tensor | None  # (S,), added to the logits of the negatives after the margin; None for 0


@dataclass
class Labels:
    """The labels of the batch whose centers are on this rank. The values of others are arbitrary."""

    columns: torch.Tensor  # (G, P) int64, -1 where another rank has the class, or there is no label
    held: torch.Tensor  # (G, P) bool, whether this rank has the class
    positions: torch.Tensor  # (G, P) int64, of the sub-center with the largest cosine
    inverse_norms: torch.Tensor  # (G, P), 1 / |W| of this center
    cosines: torch.Tensor  # (G, P) float64


@dataclass
class Step:
    """A step between its forward and its backward pass."""

    sampled: StepCenters  # the centers of the step
    features: Features  # (G, E) of all ranks
    labels: Labels
    targets: Targets  # the margin's results for the labels
    log_weights: torch.Tensor | None  # see Drawn
    kept: Any = None  # data that the passes keep between their two halves
    # Numbers that the passes need on the host, which the check of the loss copies there
    borders: Any = None
    loss: float = math.nan  # mean over the global batch
    started: bool = False  # whether the gradient by the features of the first tile has been added
    # The following are set once the statistics of all ranks are known.
    row_term: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (G,) float64, see Objective.term
    largest: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # scalar float64, the largest a of the rows
    # (G, P) gradient of the summed loss with respect to s times the labels' cosines, 0 where ``held`` is False
    d_labels: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # (G,) gradient of the summed loss with respect to the norms of the features; None for 0
    d_norms: torch.Tensor | None = None
    by_parameters: tuple[torch.Tensor, ...] = ()  # gradients of the mean loss by the objective's parameters

    def label_gradient(self) -> torch.Tensor:
        """Returns the labels' part of the gradient by the unit rows of the features, without the factor s: (G, E)."""
        labels, gradient = self.labels, torch.zeros_like(self.features.unit)
        for number in range(labels.columns.shape[1]):
            positions = labels.positions[:, number]
            rows = positions if self.sampled.rows is None else self.sampled.rows[positions]
            centers = gather_rows(self.sampled.weight, rows)
            factors = self.d_labels[:, number] * labels.inverse_norms[:, number]
            gradient.addcmul_(centers, torch.where(labels.held[:, number], factors, 0.0)[:, None])
        return gradient


class StepComputation:
    """The forward and the backward pass of a step.

    Args:
        loss: the loss, and the type of its products.
        exchange: the collectives with the other ranks.
        of_torch: the passes over the centers with PyTorch's operators.
        kernel: "torch" uses ``of_torch``, "mm" kernels between products of PyTorch, "triton" kernels with products, if
            they support the layer; "auto" uses the fastest of them on GPUs, and ``of_torch`` on CPUs.
        optimizer: the centers' optimizer, compared with the kernels' update; None for a dense gradient.
        unit_copy: whether the kernels keep a copy of the unit rows of all centers in 16 bits; None if it fits.

    Raises:
        ValueError: ``kernel`` is none of these.
    """

    def __init__(
        self,
        loss: Loss,
        exchange: LayerExchange,
        of_torch: TorchPasses,
        kernel: str = "torch",
        optimizer: RowOptimizer | None = None,
        unit_copy: bool | None = None,
    ):
        if kernel not in KERNELS:
            raise ValueError(f"layer_kernel is {kernel!r}, expected one of {', '.join(KERNELS)}")
        self.loss, self.exchange, self.of_torch = loss, exchange, of_torch
        self.kernel, self.optimizer, self.unit_copy = kernel, optimizer, unit_copy
        self.chosen: dict[Form, TorchPasses | TritonPasses] = {}

    @torch.no_grad()
    def forward(
        self, batch: GlobalBatch, drawn: Drawn, num_update: int, requires_positives: bool = True, ahead: bool = False
    ) -> Step | None:
        """Computes the loss over the centers of all ranks.

        Collectives: all-gathers ``targets`` and ``hardest`` if the margin needs them, and ``softmax_statistics``.

        Args:
            batch: features and labels of all ranks.
            drawn: the centers of the step.
            num_update: number of this step, for the error message.
            requires_positives: whether a label whose center is not among the centers of the step is an error;
                otherwise it is ignored.
            ahead: whether to begin the backward pass before the loss is checked.

        Returns:
            The step; None on every rank if a rank's batch is invalid or has another shape, see
            LayerExchange.gather_batch.

        Raises:
            MissingPositiveError: On every rank, if the center of a label is required and missing.
            FloatingPointError: On every rank, if the loss is infinite or NaN.
        """
        margin, features = self.loss.margin, Features(batch.features, self.loss.products)
        with device_of(features.unit):  # Triton launches kernels on the current device
            labels = self._labels(drawn, features)
            cosines = labels.cosines
            if margin.needs_all_targets:
                cosines = self.exchange.gather_targets(torch.where(labels.held, cosines, -torch.inf))
            targets = margin.of_labels(cosines, features.inverse_norm.double().reciprocal(), batch.labels)
            step = Step(drawn.sampled, features, labels, targets, drawn.log_weights)
            if margin.hardest:  # kernels do not support it
                hardest = self.of_torch.hardest(step, margin.hardest + 1)
                step.targets = targets._replace(hardest=self.exchange.gather_hardest(hardest))
            statistics = self.exchange.gather_statistics(self._statistics(step).to(features.unit.dtype))
            losses, missing = self._losses(step, batch, statistics, requires_positives)
            check = self.exchange.begin_check(batch, losses, missing, step.borders)
            if ahead:
                self._start_gradients(step)
        loss, step.borders = self.exchange.checked_loss(check, batch, statistics, num_update)
        if loss is None:
            return None
        step.loss = loss
        return step

    @torch.no_grad()
    def backward(self, step: Step, sink: GradientSink) -> torch.Tensor:
        """Computes the gradients of the mean loss.

        Collectives: reduce-scatter ``feature_gradient``. The last update overlaps with it.

        Args:
            step: result of `forward`. A second call with the same step recomputes the logits.
            sink: takes the gradient of the centers tile by tile, and may update them.

        Returns:
            (B, E), R times the gradient of the mean loss by the features of this rank. DistributedDataParallel averages
            a backbone's gradients over the ranks; with this factor, the average is the gradient of the mean loss.
        """
        if not step.started:
            self._start_gradients(step)
        step.started = False
        if not len(step.sampled):
            wait = self._sum_over_ranks(step, torch.zeros_like(step.features.unit))
        else:
            passes = self._passes(step)
            with device_of(step.features.unit):
                tiles = passes.num_tiles(step)
                for number in range(tiles):
                    if number:  # the first tile's gradient was added by `_start_gradients`
                        passes.add_feature_gradient(step, number)
                    if number == tiles - 1:
                        wait = self._sum_over_ranks(step, passes.feature_gradient(step))
                    passes.add_center_gradient(step, number, sink)
        return wait().mul_(self.exchange.size * (1 / len(step.labels.held)))

    def _passes(self, step: Step) -> TorchPasses | TritonPasses:
        unit = step.features.unit
        if self.kernel == "torch" or (self.kernel == "auto" and unit.is_cpu):
            return self.of_torch
        from .kernels.choice import Form, chosen_passes

        form = Form.of(step)
        if form not in self.chosen:  # chosen in the first step of its form, because only then its device is known
            self.chosen[form] = chosen_passes(self.of_torch, step, self.optimizer, self.kernel, self.unit_copy)
        return self.chosen[form]

    def _labels(self, drawn: Drawn, features: Features) -> Labels:
        sampled, columns, count = drawn.sampled, drawn.columns, self.loss.sub_centers
        held, empty = columns >= 0, torch.zeros_like(columns, dtype=features.unit.dtype)
        if not len(sampled):
            return Labels(columns, held, columns, empty, empty.double())
        numbers = torch.arange(count, device=columns.device)
        positions = columns.clamp(min=0)[..., None] * count + numbers  # (G, P, K)
        cosines, inverse = [], []
        for each in positions.flatten(1).unbind(1):  # one at a time, as they are as large as the features
            centers = gather_rows(sampled.weight, each if sampled.rows is None else sampled.rows[each])
            inverse.append(inverse_norms(centers))
            cosines.append(dot_rows(features.unit, centers).double() * inverse[-1])
        cosine, norms = (torch.stack(parts, 1).view(positions.shape) for parts in (cosines, inverse))
        winner = cosine.argmax(dim=2, keepdim=True)
        return Labels(columns, held, *(each.gather(2, winner)[..., 0] for each in (positions, norms, cosine)))

    def _statistics(self, step: Step) -> torch.Tensor:
        """Returns (W, G) float64: sums of the negatives, logits of the labels, their cosines and parameters if used.

        A label's number is -inf if this rank does not have it.
        """
        objective, held = self.loss.objective, step.labels.held
        if len(step.sampled):
            sums = self._passes(step).statistics(step)
        else:
            no_logits = step.features.unit.new_full((len(held), 1), -torch.inf)
            sums = objective.term.tile(no_logits, None).double()
        numbers = [step.targets.value, step.labels.cosines][: 1 + objective.reads_cosines]
        rows = [torch.where(held, self.loss.margin.scale * each, -torch.inf).t() for each in numbers]
        parameters = [each.flatten() for each in objective.parameters()]
        if parameters:
            values = torch.cat(parameters).double()
            rows.append(pad(values, (0, -len(values) % len(held))).view(-1, len(held)))
        return torch.cat([sums, *rows])

    def _losses(
        self, step: Step, batch: GlobalBatch, statistics: torch.Tensor, requires_positives: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Evaluates the objective, given the statistics of all ranks (R, W, G).

        Returns:
            The losses of the rows (G,) float64, and the labels whose missing center is an error (G, P) bool.
        """
        (margin, objective, *_), held, targets = self.loss, step.labels.held, step.targets
        count = batch.labels.shape[1]
        end = 2 + count * (1 + objective.reads_cosines)
        # Every rank takes the parameters of rank 0: an optimizer or a gradient scaler of the user's may have changed
        # them differently, because each rank has other centers.
        objective.set_parameters(statistics[0, end:].flatten())
        logits, *cosines = statistics[:, 2:end].amax(dim=0).t().contiguous().split(count, dim=1)
        missing = (batch.labels >= 0) & (logits == -torch.inf)
        present = (batch.labels >= 0) & ~missing
        logits, *cosines = (torch.where(present, each, 0.0) for each in (logits, *cosines))
        sums = objective.term.combine(statistics[:, :2])
        losses = objective.losses(sums, logits, cosines[0] if cosines else logits, present)
        step.row_term = objective.term.row_term(sums, losses.by_negatives)
        step.largest = losses.by_negatives.amax()
        by_labels = losses.by_targets * targets.by_cosine + losses.by_cosines
        step.d_labels = torch.where(held, by_labels, 0.0).to(step.features.unit.dtype)
        step.by_parameters = tuple(each / len(held) for each in losses.by_parameters)
        by_norms = []
        if targets.by_norm is not None:
            by_norms.append(torch.where(held, margin.scale * targets.by_norm * losses.by_targets, 0.0).sum(dim=1))
        # An objective whose loss decreases with N, or has no derivative, would train without a word.
        values = torch.where(losses.by_negatives >= 0, losses.values, torch.nan)
        if targets.penalty is not None:
            labeled = present.any(dim=1)
            values = values + torch.where(labeled, targets.penalty, 0.0)
            if targets.penalty_by_norm is not None:  # counted on one rank, the item's
                rank = torch.arange(len(held), device=held.device) // (len(held) // self.exchange.size)
                counted = labeled & (rank == self.exchange.rank)
                by_norms.append(torch.where(counted, targets.penalty_by_norm, 0.0))
        step.d_norms = sum(by_norms) if by_norms else None
        return values, missing & requires_positives

    def _start_gradients(self, step: Step) -> None:
        step.started = True
        if len(step.sampled):
            passes = self._passes(step)
            with device_of(step.features.unit):
                passes.start_gradients(step)
                passes.add_feature_gradient(step, 0)

    def _sum_over_ranks(self, step: Step, d_unit: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the features' gradient over the ranks, given the gradient by their unit rows without s."""
        features = step.features
        remove_component(d_unit, features.unit, torch.ones_like(features.inverse_norm))
        d_unit.mul_((self.loss.margin.scale * features.inverse_norm)[:, None])
        if step.d_norms is not None:
            d_unit.addcmul_(features.unit, step.d_norms.to(d_unit.dtype)[:, None])
        return self.exchange.sum_gradient(d_unit)
