"""Averages of the weights of a backbone."""

from collections.abc import Collection
from contextlib import AbstractContextManager

import torch
from torch import nn

from .weights import borrowed


class WeightAverage:
    """An average of a backbone's weights and running statistics over updates; initially the weights."""

    def __init__(self, backbone: nn.Module):
        self._backbone = backbone
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

    def reset(self) -> None:
        """Sets the average to the weights."""
        self.move(1.0)

    @torch.no_grad()
    def move(self, fraction: float) -> None:
        """Moves the average by this fraction of the way to the weights."""
        averages, weights = zip(*self._averaged)
        torch._foreach_lerp_(averages, weights, fraction)
        for copy, counter in self._counters:
            copy.copy_(counter)


class AveragedBackbone(WeightAverage):
    """The exponential moving average of a backbone's weights and running statistics.

    After update t the average moves by 1 - d towards the weights, d = min(decay, (1 + t) / (10 + t)). A constant d
    would keep the initial weights in a long average for too long (see tf.train.ExponentialMovingAverage, num_updates).
    """

    def __init__(self, backbone: nn.Module, decay: float):
        super().__init__(backbone)
        self.decay = decay

    def update(self, num_update: int) -> None:
        """Moves the average towards the weights after an update, counted from 1."""
        self.move(1 - min(self.decay, (1 + num_update) / (10 + num_update)))


class EpochMean(WeightAverage):
    """The mean of a backbone's weights and running statistics at the ends of the last epochs of a training.

    Args:
        backbone: the backbone in training.
        first: first of these epochs.
        ends: updates with which they end, see Epochs.last_ends.

    Attributes:
        count: number of ends in the mean.
    """

    def __init__(self, backbone: nn.Module, first: int, ends: Collection[int]):
        super().__init__(backbone)
        self.first, self.ends, self.count = first, ends, 0

    def update(self, num_update: int) -> None:
        """Adds the weights after an update, counted from 1, if an epoch ends with it."""
        if num_update in self.ends:
            self.count += 1
            self.move(1 / self.count)
