"""A moving average of the weights of a backbone."""

import copy
import itertools

import torch
from torch import nn


class AveragedBackbone:
    """The exponential moving average of a backbone's weights and running statistics.

    After update t the average moves by 1 - d towards the weights, d = min(decay, (1 + t) / (10 + t)): a long average
    would otherwise keep the initial weights for as long (tf.train.ExponentialMovingAverage with num_updates).

    Attributes:
        model: a copy of the backbone with the average.
    """

    def __init__(self, backbone: nn.Module, decay: float):
        self.model, self.decay = copy.deepcopy(backbone).requires_grad_(False), decay
        pairs = list(zip(_tensors(self.model), _tensors(backbone)))
        self._numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counters = [pair for pair in pairs if not pair[0].is_floating_point()]

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


def _tensors(model: nn.Module) -> itertools.chain[torch.Tensor]:
    return itertools.chain(model.parameters(), model.buffers())
