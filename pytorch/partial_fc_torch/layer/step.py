"""A step of Partial FC: this rank's part of one softmax over the centers of all ranks.

    gather -> sample -> logits -> margin -> softmax over the ranks -> gradients -> update of the centers

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes the
G target logits, and possibly the others. The ranks exchange the maximum and the sum of exponentials of every row, which
determine the probabilities p of the whole softmax. With D = (p - onehot) times the slope of the margin, and g = s D^T
x, the gradient through the normalization of a center is dW = (g - (g.w) w) / |W|; the gradient of a feature has the
same form.

Logits exist only for a tile of centers at a time (small layers cache them between both passes), so the memory of a step
does not grow with the number of classes. No shape depends on values on the device. The host waits for the device once,
to check the loss before any center changes; it has queued the gradient of the first tile before, so the device stays
busy.

Shapes: B local batch, R ranks, G = B*R, C classes, L of this rank, S of them sampled, T centers of a tile, E embedding.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from partial_fc.layer.sampling import label_columns
from partial_fc.layer.softmax import combine_tiles

from .device import to_device
from .exchange import LayerExchange
from .margins import Margin
from .passes import Passes, Step
from .products import Features, Float32Products, HalfProducts
from .rows import Centers, TileGradient, dot_rows, inverse_norms, remove_component
from .stores import CenterStore, StepCenters
from .tiles import negative_weights


class Drawn(NamedTuple):
    """The centers of a step."""

    sampled: StepCenters  # loaded by the store
    columns: torch.Tensor  # (G,) int64, column of each row's target among them, -1 if this rank does not have it
    positives: torch.Tensor  # columns of all labels of the update, more than G with micro-batches


class MarginSoftmax:
    """The two passes of a step.

    Args:
        exchange: the collectives with the other ranks.
        store: keeps the centers.
        class_start: first class of this rank.
        margin: changes the logits.
        products: determine the operand that is computed from the features.
        passes: both passes over the centers, with this margin and these products.
        weighted_classes: L, if each sampled negative is weighted by 1 / its probability, see log_weights; otherwise 0.

    Attributes:
        requires_positives: if False, rows whose target is not among the centers of the step have no loss; if True, they
            raise an error.
    """

    def __init__(
        self,
        exchange: LayerExchange,
        store: CenterStore,
        class_start: int,
        margin: Margin,
        products: Float32Products | HalfProducts,
        passes: Passes,
        weighted_classes: int = 0,
    ):
        self.exchange, self.store, self.class_start = exchange, store, class_start
        self.margin, self.products, self.passes = margin, products, passes
        self.weighted_classes, self.requires_positives = weighted_classes, True

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
            labels: (B,) or (B, 1) integers in 0..C-1.
            draw: the labels of all ranks (G,) int64 -> the centers of the step, see `draw`.
            num_update: number of this step, for the error message.
            ahead: whether to begin the backward pass before the loss is checked.

        Returns:
            The step; None on every rank if the ranks have agreed on another batch size, so that the call must be
            repeated.

        Raises:
            ValueError, TypeError: On every rank, see LayerExchange.agree.
            MissingPositiveError: On every rank, if the center of a label is not among the centers of the step.
            FloatingPointError: On every rank, if the loss is infinite or NaN.
        """
        batch = self.exchange.gather_batch(features, labels)
        step = self._begin(draw(batch.labels), batch.features, batch.labels)
        gathered = self.exchange.gather_statistics(self._statistics(step), batch)
        step.log_sum_exp = gathered.log_sum_exp
        if ahead:
            self.passes.begin_gradients(step)
        loss = self.exchange.mean_loss(gathered, self.requires_positives, num_update)
        if loss is None:
            self.exchange.agree(features, labels)
            return None
        step.loss = loss
        return step

    @torch.no_grad()
    def backward(self, step: Step, receive: Callable[[TileGradient], None]) -> torch.Tensor:
        """Computes the gradients of the mean loss.

        Collectives: reduce-scatter ``feature_gradient``.

        Args:
            step: result of `forward`. A second call with the same step recomputes the logits.
            receive: is called with the gradient by the centers of each tile, and may update them.

        Returns:
            (B, E), R times the gradient of the mean loss by the features of this rank. DistributedDataParallel averages
            a backbone's gradients over the ranks; with this factor, the average is the gradient of the mean loss.
        """
        wait = self.passes.gradients(step, receive, functools.partial(self._sum_by_features, step))
        return wait().mul_(self.exchange.collectives.size * (1 / len(step.held)))

    def _sum_by_features(self, step: Step, d_unit: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the features' gradient over the ranks, given the gradient by their unit rows."""
        features = step.features
        remove_component(d_unit, features.unit, torch.ones_like(features.inverse_norm))
        d_unit.mul_((self.margin.scale * features.inverse_norm)[:, None])
        by_norms = step.targets.gradient_by_norms(step.d_target_logits, self.margin.scale)
        if by_norms is not None:
            d_unit.addcmul_(features.unit, torch.where(step.held, by_norms, 0.0).to(d_unit.dtype)[:, None])
        return self.exchange.sum_gradient(d_unit)

    def draw(self, centers: Centers, sample: Callable[[torch.Tensor], torch.Tensor], labels: torch.Tensor) -> Drawn:
        """Samples the centers of a step.

        Args:
            centers: all centers of this rank.
            sample: maps the labels of all ranks to the sorted local indices (S,) of the centers of the step.
            labels: (G,) int64, of all ranks.
        """
        sampler_labels = self.exchange.to_host(labels) if self.store.samples_on_host else labels
        index = sample(sampler_labels)
        sampled = self.store.load(centers, index)
        if not len(index):
            columns = torch.full_like(labels, -1)
            return Drawn(sampled, columns, columns)
        columns = label_columns(sampler_labels, index, self.class_start, torch)
        if sampled.places is not None:
            columns = torch.where(columns < 0, columns, sampled.places[columns])
        columns = to_device(columns, labels.device)
        return Drawn(sampled, columns, columns)

    def _begin(self, drawn: Drawn, rows: torch.Tensor, labels: torch.Tensor) -> Step:
        """Computes the target logits."""
        sampled, columns, positives = drawn
        features, held = Features(rows, self.products), columns >= 0
        cosine = torch.zeros(len(labels), dtype=torch.float64, device=rows.device)
        if len(sampled):
            places = columns.clamp(min=0)
            target_centers = sampled.centers.weight[places if sampled.rows is None else sampled.rows[places]]
            cosine = dot_rows(features.unit, target_centers).double() * inverse_norms(target_centers)
        if self.margin.needs_all_targets:
            cosine = self.exchange.gather_targets(torch.where(held, cosine, -torch.inf))
        targets = self.margin.targets(cosine, features.inverse_norm.double().reciprocal(), labels)
        return Step(
            sampled,
            features,
            columns,
            held,
            targets,
            target_logits=torch.where(held, self.margin.scale * targets.value, -torch.inf),
            log_weights=negative_weights(positives, len(sampled), self.weighted_classes),
        )

    def _statistics(self, step: Step) -> torch.Tensor:
        """Returns (3, G) float64: each row's maximum logit, sum of exp(logit - maximum), and target logit or -inf."""
        target_logits = step.target_logits
        if not len(step.sampled):  # this rank has no targets, so all of them are -inf
            return torch.stack([target_logits, torch.zeros_like(target_logits), target_logits])
        maxima, sums = self.passes.statistics(step)
        if step.targets.penalty is not None:  # the loss is log_sum_exp - target, so this adds the penalty to the loss
            target_logits = target_logits - step.targets.penalty
        return torch.stack([*combine_tiles(maxima, sums, torch), target_logits])
