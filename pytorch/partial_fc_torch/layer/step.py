"""A step of Partial FC: this rank's part of one loss over the centers of all ranks.

    gather -> sample -> logits -> margin -> objective over the ranks -> gradients -> update of the centers

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes the
logits of a row's labels, and possibly the others. An objective is a function of two things, which the ranks exchange:
the sum N of a row's negatives, such as log sum exp, over the centers of all ranks, and the logits of its labels.

With the derivative a of a row's loss with respect to N, the gradient with respect to a negative's logit l is
a exp(l - N); with respect to a label's logit, the objective returns it. D is this gradient times the slope of the
margin, and with g = s D^T x the gradient through the normalization of a center is dW = (g - (g.w) w) / |W|; the
gradient of a feature has the same form.

Logits exist only for a tile of centers at a time (small layers cache them between both passes), so the memory of a step
does not grow with the number of classes. Labels are left out of the tiles: their logits and gradients are G*P rows, in
float32 whatever the type of the products. No shape depends on values on the device. The host waits for the device once,
to check the loss before any center changes; it has queued the gradient of the first tile before, so the device stays
busy.

Shapes: B local batch, R ranks, G = B*R, P labels of an item, C classes, L of this rank, S of them sampled, K
sub-centers, T classes of a tile, E embedding.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.cuda import device_of

from partial_fc.layer.sampling import label_columns, log_weights

from .device import to_device
from .exchange import GlobalBatch, LayerExchange
from .gradients import GradientSink
from .margins import Margin
from .objectives import Objective
from .passes import Labels, Passes, Step
from .products import Features, Float32Products, HalfProducts
from .rows import Centers, dot_rows, inverse_norms, remove_component
from .stores import CenterStore, StepCenters


class Drawn(NamedTuple):
    """The centers of a step."""

    sampled: StepCenters  # loaded by the store
    columns: torch.Tensor  # (G, P) int64, column of each label among the classes of the step, -1 if not on this rank
    positives: torch.Tensor  # columns of all labels of the update, more than G*P with micro-batches


class StepComputation:
    """The two passes of a step.

    Args:
        exchange: the collectives with the other ranks.
        store: keeps the centers.
        class_start: first class of this rank.
        margin, objective: define the loss.
        products: determine the operand that is computed from the features.
        choose_passes: unit rows of the features -> the passes over the centers, see kernels/choice.py.
        sub_centers: K.
        weighted_classes: L, if each sampled negative is weighted by 1 / its probability, see log_weights; otherwise 0.

    Attributes:
        requires_positives: if False, labels whose center is not sampled are ignored; if True, they raise an error.
    """

    def __init__(
        self,
        exchange: LayerExchange,
        store: CenterStore,
        class_start: int,
        margin: Margin,
        objective: Objective,
        products: Float32Products | HalfProducts,
        choose_passes: Callable[[torch.Tensor], Passes],
        sub_centers: int = 1,
        weighted_classes: int = 0,
    ):
        self.exchange, self.store, self.class_start = exchange, store, class_start
        self.margin, self.objective, self.products, self.choose_passes = margin, objective, products, choose_passes
        self.sub_centers, self.weighted_classes, self.requires_positives = sub_centers, weighted_classes, True

    @torch.no_grad()
    def forward(
        self,
        features: torch.Tensor,
        labels,
        draw: Callable[[torch.Tensor], Drawn],
        num_update: int,
        ahead: bool = False,
    ) -> Step | None:
        """Computes the loss over the centers of all ranks.

        Collectives: all-gathers ``features`` and ``softmax_statistics``, and ``targets`` if the margin needs all.

        Args:
            features: (B, E) of this rank, in the type and on the device of the centers.
            labels: (B,) or (B, P) integers in 0..C-1, or -1 for none.
            draw: the labels of all ranks (G, P) int64 -> the centers of the step, see `draw`.
            num_update: number of this step, for the error message.
            ahead: whether to begin the backward pass before the loss is checked.

        Returns:
            The step; None on every rank if the ranks have agreed on another shape of the batch, so that the call must
            be repeated.

        Raises:
            ValueError, TypeError: On every rank, see LayerExchange.agree.
            MissingPositiveError: On every rank, if the center of a label is not among the centers of the step.
            FloatingPointError: On every rank, if the loss is infinite or NaN.
        """
        batch = self.exchange.gather_batch(features, labels)
        step = self._begin(draw(batch.labels), batch)
        with device_of(step.features.unit):  # Triton launches kernels on the current device
            statistics = self.exchange.gather_statistics(self._statistics(step).to(features.dtype))
            losses, missing = self._losses(step, batch, statistics)
            check = self.exchange.begin_check(batch, losses, missing)
            if ahead:
                self._start_gradients(step)
        loss = self.exchange.checked_loss(check, batch, statistics, num_update)
        if loss is None:
            self.exchange.agree(features, labels)
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
            passes = self.choose_passes(step.features.unit)
            with device_of(step.features.unit):
                tiles = passes.num_tiles(step)
                for number in range(tiles):
                    if number:
                        passes.add_feature_gradient(step, number)
                    if number == tiles - 1:
                        wait = self._sum_over_ranks(step, passes.feature_gradient(step))
                    passes.add_center_gradient(step, number, sink)
        return wait().mul_(self.exchange.collectives.size * (1 / len(step.labels.held)))

    def draw(self, centers: Centers, sample: Callable[[torch.Tensor], torch.Tensor], labels: torch.Tensor) -> Drawn:
        """Samples the centers of a step.

        Args:
            centers: all centers of this rank.
            sample: maps labels (n,) of all ranks to the sorted local indices (S,) of the classes of the step.
            labels: int64, of all ranks, in any shape.
        """
        on_store = (self.exchange.to_host(labels) if self.store.samples_on_host else labels).flatten()
        index = sample(on_store)
        sampled = self.store.load(centers, rows_of_classes(index, self.sub_centers))
        if not len(index):
            columns = torch.full_like(labels, -1)
            return Drawn(sampled, columns, columns)
        columns = label_columns(on_store, index, self.class_start, torch)
        if sampled.places is not None:
            places = sampled.places[:: self.sub_centers] // self.sub_centers
            columns = torch.where(columns < 0, columns, places[columns])
        columns = to_device(columns, labels.device).view(labels.shape)
        return Drawn(sampled, columns, columns)

    def _begin(self, drawn: Drawn, batch: GlobalBatch) -> Step:
        """Computes the logits of the labels."""
        features = Features(batch.features, self.products)
        labels = self._labels(drawn, features)
        cosines = labels.cosines
        if self.margin.needs_all_targets:
            cosines = self.exchange.gather_targets(torch.where(labels.held, cosines, -torch.inf))
        targets = self.margin.of_labels(cosines, features.inverse_norm.double().reciprocal(), batch.labels)
        classes = len(drawn.sampled) // self.sub_centers
        weights = negative_weights(drawn.positives, classes, self.weighted_classes)
        return Step(drawn.sampled, features, labels, targets, self.sub_centers, weights)

    def _labels(self, drawn: Drawn, features: Features) -> Labels:
        sampled, columns, count = drawn.sampled, drawn.columns, self.sub_centers
        held, empty = columns >= 0, torch.zeros_like(columns, dtype=features.unit.dtype)
        if not len(sampled):
            return Labels(columns, held, columns, empty, empty.double())
        numbers = torch.arange(count, device=columns.device)
        positions = columns.clamp(min=0)[..., None] * count + numbers  # (G, P, K)
        cosines, inverse = [], []
        for each in positions.flatten(1).unbind(1):  # one at a time, as they are as large as the features
            centers = sampled.centers.weight[each if sampled.rows is None else sampled.rows[each]]
            inverse.append(inverse_norms(centers))
            cosines.append(dot_rows(features.unit, centers).double() * inverse[-1])
        cosine, norms = (torch.stack(parts, 1).view(positions.shape) for parts in (cosines, inverse))
        winner = cosine.argmax(dim=2, keepdim=True)
        return Labels(columns, held, *(each.gather(2, winner)[..., 0] for each in (positions, norms, cosine)))

    def _statistics(self, step: Step) -> torch.Tensor:
        """Returns (W, G) float64: the sums of the negatives, the labels' logits, and their cosines if they are read.

        A label's number is -inf if this rank does not have it.
        """
        if len(step.sampled):
            sums = self.choose_passes(step.features.unit).statistics(step)
        else:
            no_logits = step.features.unit.new_full((len(step.features.unit), 1), -torch.inf)
            sums = self.objective.term.tile(no_logits, None).double()
        numbers = [step.targets.value, step.labels.cosines][: 1 + self.objective.reads_cosines]
        held = step.labels.held
        return torch.cat([sums, *(torch.where(held, self.margin.scale * each, -torch.inf).t() for each in numbers)])

    def _losses(
        self, step: Step, batch: GlobalBatch, statistics: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Evaluates the objective, given the statistics of all ranks (R, W, G).

        Returns:
            The losses of the rows (G,) float64, and the labels without a sampled center (G, P) bool, None if these may
            be missing.
        """
        held, targets, width, count = step.labels.held, step.targets, self.objective.term.width, batch.labels.shape[1]
        logits, *cosines = statistics[:, width:].amax(dim=0).t().contiguous().split(count, dim=1)
        missing = (batch.labels >= 0) & (logits == -torch.inf)
        present = (batch.labels >= 0) & ~missing
        sums = self.objective.term.combine(statistics[:, :width])
        logits, read = (torch.where(present, each, 0.0) for each in (logits, cosines[0] if cosines else logits))
        losses = self.objective.losses(sums, logits, read, present)
        step.row_term = self.objective.term.row_term(self.objective.term.negatives(sums), losses.by_negatives)
        by_labels = losses.by_targets * targets.by_cosine
        if losses.by_cosines is not None:
            by_labels = by_labels + losses.by_cosines
        step.d_labels = torch.where(held, by_labels, 0.0).to(step.features.unit.dtype)
        step.by_parameters = tuple(each / len(held) for each in losses.by_parameters)
        by_norms = []
        if targets.by_norm is not None:
            by_norms.append(torch.where(held, self.margin.scale * targets.by_norm * losses.by_targets, 0.0).sum(dim=1))
        # An objective whose loss decreases with N, or has no derivative, would train without a word.
        values = torch.where(losses.by_negatives >= 0, losses.values, torch.nan)
        if targets.penalty is not None:
            labeled = present.any(dim=1)
            values = values + torch.where(labeled, targets.penalty, 0.0)
            if targets.penalty_by_norm is not None:  # counted on one rank, the item's
                rank = torch.arange(len(held), device=held.device) // (len(held) // self.exchange.collectives.size)
                counted = labeled & (rank == self.exchange.collectives.rank)
                by_norms.append(torch.where(counted, targets.penalty_by_norm, 0.0))
        step.d_norms = sum(by_norms) if by_norms else None
        return values, missing if self.requires_positives else None

    def _start_gradients(self, step: Step) -> None:
        step.started = True
        if len(step.sampled):
            passes = self.choose_passes(step.features.unit)
            with device_of(step.features.unit):
                passes.start_gradients(step)
                passes.add_feature_gradient(step, 0)

    def _sum_over_ranks(self, step: Step, d_unit: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the features' gradient over the ranks, given the gradient by their unit rows, divided by s."""
        features = step.features
        remove_component(d_unit, features.unit, torch.ones_like(features.inverse_norm))
        d_unit.mul_((self.margin.scale * features.inverse_norm)[:, None])
        if step.d_norms is not None:
            d_unit.addcmul_(features.unit, step.d_norms.to(d_unit.dtype)[:, None])
        return self.exchange.sum_gradient(d_unit)


def rows_of_classes(index, sub_centers: int):
    """Returns the rows (S*K,) of the sub-centers of classes with local indices (S,), a tensor or an array."""
    if sub_centers == 1:
        return index
    numbers = torch.arange(sub_centers, device=index.device) if isinstance(index, torch.Tensor) else range(sub_centers)
    return (index[:, None] * sub_centers + numbers).reshape(-1)


def negative_weights(columns: torch.Tensor, sampled: int, num_local: int) -> torch.Tensor | None:
    """Returns the weights (S,) to add to the logits of sampled negatives, see log_weights; None if there are none.

    Args:
        columns: int64, columns of the labels of the update, -1 for none, in any shape.
        sampled: S.
        num_local: L; 0 disables the weights.
    """
    if num_local <= sampled:
        return None
    drawn = torch.ones(sampled + 1, dtype=torch.bool, device=columns.device)
    drawn[columns] = False  # a column of -1 sets the additional last element
    return log_weights(drawn[:-1], num_local, torch)
