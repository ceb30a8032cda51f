"""One update of the layer from several micro-batches.

Shapes: B micro-batch of this rank, R ranks, n micro-batches, S centers of the update of this rank, E embedding.
"""

import torch

from .gradients import RowGradient
from .module import ClassCenters, Snapshot


class Accumulation:
    """Accumulates the micro-batches of one update: call `step` for each, in order, then `update`.

    The rows of a softmax are independent, and the centers change only at the end, so n micro-batches of B images have
    the same loss, gradients and centers as one batch of nB images. All labels are known before the first features, so
    all micro-batches share one sample that contains all positives. A margin's batch statistics, such as AdaFace's
    norms, are computed per micro-batch.

    Collectives: see UpdateLabels.gather; for each step, see ClassCenters.

    Args:
        layer: a layer that updates its centers itself, such as PartialFC.
        labels: (nB,) or (nB, P) integers, this rank's labels of all micro-batches.
        count: n.

    Raises:
        ValueError, JobError: see UpdateLabels.gather.
    """

    def __init__(self, layer: ClassCenters, labels, count: int):
        self._layer, self._count, self._number = layer, count, 0
        self._before = Snapshot(layer)
        layer._prepare_sample()
        gathered = layer._update_labels.gather(labels, count, layer.device)
        self._drawn = layer._draw(gathered)
        self._columns = self._drawn.columns.view(len(gathered), count, -1, gathered.shape[2])
        self._gradient = RowGradient(self._drawn.sampled)
        self._by_parameters = [torch.zeros_like(each) for each in layer.objective.trained()]

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes both passes for the next micro-batch like ClassCenters.step, but changes no center.

        Returns:
            gradient: (B, E), R/n times the gradient of the micro-batch's mean loss, so that the backbone's gradients of
                the update are the sum over its micro-batches.
            loss: the micro-batch's mean loss over the ranks; the loss of the update is the mean over its micro-batches.
        """
        layer, drawn = self._layer, self._drawn._replace(columns=self._columns[:, self._number].flatten(0, 1))
        self._number += 1
        with self._before.restored_on_error():
            step = layer._forward_step(layer._on_device(features.detach()), labels, ahead=True, drawn=drawn)
        with layer._full_precision():
            gradient = layer._computation.backward(step, self._gradient).mul_(1 / self._count)
        self._by_parameters = [total + each for total, each in zip(self._by_parameters, step.by_parameters)]
        return gradient.to(features.device), torch.tensor(step.loss, dtype=gradient.dtype)

    @torch.no_grad()
    def update(self) -> None:
        """Updates the centers by the mean of the gradients."""
        layer, (_, gradient) = self._layer, self._gradient.in_order()
        layer._apply_gradient(self._drawn.sampled, gradient.mul_(1 / self._count))
        if self._by_parameters and layer.optimizer:
            layer.optimizer.update_parameters([total / self._count for total in self._by_parameters])
