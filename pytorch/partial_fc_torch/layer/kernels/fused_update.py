"""Arguments for the updates that center_gradient_kernel includes.

Shapes: N centers, E embedding.
"""

import math
from typing import NamedTuple

import torch

from ..gradients import GradientSink
from ..optimizers import SGD, Adagrad, AdamW, RowUpdate
from . import update

States = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class FusedUpdate(NamedTuple):
    """Arguments of center_gradient_kernel."""

    optimizer: int  # OPTIMIZER
    states: States  # first, second and updates
    rates: tuple[float, ...]  # step_size, decay, rate1, rate2, log_beta1, log_beta2 and eps


GRADIENT_ALONE = FusedUpdate(update.NONE.value, (None, None, None), (0.0,) * 7)


def fused_update(sink: GradientSink) -> FusedUpdate:
    """Returns the kernel's arguments for a sink; GRADIENT_ALONE if the kernel lacks its update."""
    if not isinstance(sink, RowUpdate):
        return GRADIENT_ALONE
    optimizer, rate, states = sink.optimizer, sink.learning_rate, sink.centers.states
    rates: tuple[float, ...]
    if type(optimizer) is SGD:  # a subclass may have another update
        sums_gradients = optimizer.momentum_convention == "gradients"
        step_size, gain = (-rate, 1.0) if sums_gradients else (1.0, -rate)
        rates = step_size, optimizer.weight_decay, optimizer.momentum, gain, 0.0, 0.0, 0.0
        return FusedUpdate(update.SGD.value, (states["weight_mom"], None, None), rates)
    if type(optimizer) is AdamW:
        first, second, updates = (states[name] for name in optimizer.states)
        logarithms = [math.log(beta) if beta else -math.inf for beta in optimizer.betas]
        complements = [1 - beta for beta in optimizer.betas]
        rates = rate, optimizer.weight_decay, *complements, *logarithms, optimizer.eps
        return FusedUpdate(update.ADAMW.value, (first, second, updates), rates)
    if type(optimizer) is Adagrad:
        rates = rate, optimizer.weight_decay, 0.0, 0.0, 0.0, 0.0, optimizer.eps
        return FusedUpdate(update.ADAGRAD.value, (None, None, states["weight_sum"]), rates)
    return GRADIENT_ALONE
