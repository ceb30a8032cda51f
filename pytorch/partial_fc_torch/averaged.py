"""A moving average of the weights of a backbone."""

from contextlib import AbstractContextManager

import torch
from torch import nn

from .weights import borrowed


class AveragedBackbone:
    """The exponential moving average of a backbone's weights and running statistics.

    After update t the average moves by 1 - d towards the weights, d = min(decay, (1 + t) / (10 + t)). A constant d
    would keep the initial weights in a long average for too long (see tf.train.ExponentialMovingAverage, num_updates).
    """

    def __init__(self, backbone: nn.Module, decay: float):
        self._backbone, self.decay = backbone, decay
        pairs = [(weight.detach().clone(), weight) for weight in (*backbone.parameters(), *backbone.buffers())]
        self._average_of = {id(weight): average for average, weight in pairs}
        self._averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counters = [pair for pair in pairs if not pair[0].is_floating_point()]

    def in_backbone(self) -> AbstractContextManager[nn.Module]:
        """Returns a context in which the backbone has the averages."""

        def average_of(weight: torch.Tensor) -> torch.Tensor:
            average = self._average_of.get(id(weight))
            # A buffer that the backbone has replaced in the meantime has no average.
            return weight.detach().clone() if average is None else average

        return borrowed(self._backbone, average_of)

    @torch.no_grad()
    def update(self, num_update: int) -> None:
        """Moves the average towards the weights after an update, counted from 1."""
        self._move(1 - min(self.decay, (1 + num_update) / (10 + num_update)))

    @torch.no_grad()
    def reset(self) -> None:
        """Sets the average to the weights."""
        self._move(1.0)

    def _move(self, fraction: float) -> None:
        averages, weights = zip(*self._averaged)
        torch._foreach_lerp_(averages, weights, fraction)
        for copy, counter in self._counters:
            copy.copy_(counter)
