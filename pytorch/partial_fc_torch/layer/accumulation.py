"""One update of the layer from several micro-batches.

Shapes: B micro-batch of this rank, R ranks, n micro-batches, S centers of the update of this rank, E embedding.
"""

import torch

from .gradients import RowGradient
from .module import ClassCenters
from .step import Drawn


class Accumulation:
    """The micro-batches of one update, in order: call `step` for each, then `update`.

    The rows of a softmax do not depend on each other, and the centers change at the end: n micro-batches of B images
    have the loss, the gradients and the centers of one batch of nB. Their labels are known before their features, so
    that all of them share one sample, drawn for the labels of all. What a margin computes from a batch, as AdaFace from
    its norms, it computes from each micro-batch.

    Collectives: those of LayerExchange.gather_labels; in each step those of ClassCenters.

    Args:
        layer: with an optimizer of its own, as PartialFC.
        labels: (nB,) integers of this rank, of all micro-batches.
        count: n.

    Raises:
        ValueError, JobError: see LayerExchange.gather_labels.
    """

    def __init__(self, layer: ClassCenters, labels, count: int):
        self._layer, self._count, self._number = layer, count, 0
        self._margin = [buffer.clone() for buffer in layer.margin.buffers()]
        layer._prepare_sample()
        gathered = layer._exchange.gather_labels(labels, count, layer.device)
        self._drawn = layer._draw(gathered.flatten())
        self._columns = self._drawn.columns.view(len(gathered), count, -1)
        self._gradient = RowGradient(self._drawn.sampled)

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Does both passes for the next micro-batch; as ClassCenters.step, but that no center changes.

        Returns:
            ((B, E), R/n times the gradient of its mean loss; its mean loss over the ranks). The mean of the losses is
            that of the update; its gradient by the backbone is the sum over the micro-batches.
        """
        layer, columns = self._layer, self._columns[:, self._number].flatten()
        drawn = Drawn(self._drawn.sampled, columns, self._drawn.positives)
        self._number += 1
        try:
            step = layer._forward_step(layer._on_device(features.detach()), labels, ahead=True, draw=lambda _: drawn)
        except Exception:
            layer._restore_margin(self._margin)  # as before the update, of which this may be a later micro-batch
            raise
        with layer._full_precision():
            gradient = layer._softmax.backward(step, self._gradient).mul_(1 / self._count)
        return gradient.to(features.device), torch.tensor(step.loss, dtype=gradient.dtype)

    @torch.no_grad()
    def update(self) -> None:
        """Updates the centers by the mean of the gradients."""
        _, gradient = self._gradient.in_order()
        self._layer._apply_gradient(self._drawn.sampled, gradient.mul_(1 / self._count))
