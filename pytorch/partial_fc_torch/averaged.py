"""A moving average of the weights of a backbone."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from .weights import borrowed


class AveragedBackbone:
    """The exponential moving average of a backbone's weights and running statistics.

    After update t the average moves by 1 - d towards the weights, d = min(decay, (1 + t) / (10 + t)): a long average
    would otherwise keep the initial weights for as long (tf.train.ExponentialMovingAverage with num_updates).

    Attributes:
        tensors: the averages of parameters and buffers, in the order of the backbone.
    """

    def __init__(self, backbone: nn.Module, decay: float):
        self._backbone, self.decay = backbone, decay
        weights = list(_tensors(backbone))
        self.tensors = [weight.detach().clone() for weight in weights]
        pairs = list(zip(self.tensors, weights))
        self._average_of = {id(weight): average for average, weight in pairs}
        self._numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counters = [pair for pair in pairs if not pair[0].is_floating_point()]

    def in_backbone(self) -> AbstractContextManager[nn.Module]:
        """Returns a context in which the backbone has the averages."""
        return borrowed(self._backbone, self._average)

    def _average(self, weight: torch.Tensor) -> torch.Tensor:
        own = self._average_of.get(id(weight))
        return weight.detach().clone() if own is None else own  # None: a buffer that the backbone has replaced since

    @torch.no_grad()
    def update(self, num_update: int) -> None:
        """Moves the average towards the weights after an update, counted from 1."""
        self._move(1 - min(self.decay, (1 + num_update) / (10 + num_update)))

    @torch.no_grad()
    def reset(self) -> None:
        """Sets the average to the weights."""
        self._move(1.0)

    def _move(self, share: float) -> None:
        averages, weights = zip(*self._numbers)
        torch._foreach_lerp_(averages, weights, share)
        for own, counter in self._counters:
            own.copy_(counter)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(model.parameters(), model.buffers())
