"""A step of Partial FC on one page: this rank's part of one softmax over the centers of all ranks.

    gather -> sample -> logits -> margin -> softmax over the ranks -> gradients -> update of the centers

With the unit rows x = X / |X| of the features and w = W / |W| of the centers, a logit is s x.w; the margin changes the
G target logits, and possibly the others. The ranks exchange the maximum and the sum of exponentials of every row, from
which the probabilities p of the undivided layer follow. With D = (p - onehot) times the slope of the margin, and g = s
D^T x, the gradient through the normalization of a center is dW = (g - (g.w) w) / |W|; that of a feature has the same
form. A logit exists only in a tile of centers, and the cache keeps those of small layers between both passes: the
memory of a step does not grow with the number of classes. No shape depends on values on the device, and the host waits
for it once, to check the loss before any center changes: by then it has queued the gradient of the first tile, with
which the device is busy meanwhile.

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

    sampled: StepCenters  # as the store has loaded them
    columns: torch.Tensor  # (G,) int64, column of each row's target among them, -1 if it is not there
    positives: torch.Tensor  # columns of all labels that the centers were sampled for, more than G with micro-batches


class MarginSoftmax:
    """The two passes of a step.

    Args:
        exchange: with the other ranks.
        store: of the centers.
        class_start: first class of this rank.
        margin: of the targets.
        products: whose operand the features become.
        passes: over the centers, with this margin and these products.
        weighted_classes: L, if each sampled negative counts 1 / its probability, see log_weights; otherwise 0.

    Attributes:
        requires_positives: False leaves out the rows whose center is not among those of the step, instead of an error.
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
            num_update: of this step, for the error message.
            ahead: begins the backward pass before the loss is checked.

        Returns:
            None, on every rank, if the ranks have agreed on another batch size: then the call has to be repeated.

        Raises:
            ValueError, TypeError: on every rank, see LayerExchange.agree.
            MissingPositiveError: on every rank, if the center of a label is not among those of the step.
            FloatingPointError: on every rank, if the loss is infinite or NaN.
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
            step: from `forward`. A second call with the same step computes the logits again.
            receive: is called with the gradient by the centers of each tile, and may update them.

        Returns:
            (B, E), R times the gradient of the mean loss by the features of this rank. DistributedDataParallel averages
            the gradients of a backbone over the ranks; this factor makes the average the gradient of the mean loss.
        """
        wait = self.passes.gradients(step, receive, functools.partial(self._sum_by_features, step))
        return wait().mul_(self.exchange.collectives.size * (1 / len(step.held)))

    def _sum_by_features(self, step: Step, d_unit: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to sum the gradient by the features, from that by their unit rows; see Passes.gradients."""
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
            centers: of this rank.
            sample: the labels of all ranks -> sorted local indices (S,) of the centers of the step.
            labels: (G,) int64, of all ranks.
        """
        where = self.exchange.to_host(labels) if self.store.samples_on_host else labels
        index = sample(where)
        sampled = self.store.load(centers, index)
        if not len(index):
            nowhere = torch.full_like(labels, -1)
            return Drawn(sampled, nowhere, nowhere)
        columns = label_columns(where, index, self.class_start, torch)
        if sampled.places is not None:
            columns = torch.where(columns < 0, columns, sampled.places[columns])
        columns = to_device(columns, labels.device)
        return Drawn(sampled, columns, columns)

    def _begin(self, drawn: Drawn, rows: torch.Tensor, labels: torch.Tensor) -> Step:
        """Computes the targets."""
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
        """(3, G) float64 of this rank: maximum logit of each row, sum of exp(logit - maximum), target logit or -inf."""
        target_logits = step.target_logits
        if not len(step.sampled):  # no target either: all of them are -inf
            return torch.stack([target_logits, torch.zeros_like(target_logits), target_logits])
        maxima, sums = self.passes.statistics(step)
        if step.targets.penalty is not None:  # the loss is log_sum_exp - target: what is subtracted here is added there
            target_logits = target_logits - step.targets.penalty
        return torch.stack([*combine_tiles(maxima, sums, torch), target_logits])
