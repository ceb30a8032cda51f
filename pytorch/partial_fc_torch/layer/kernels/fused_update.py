"""The updates that the kernel of the center gradient has within it.

Shapes: N centers, E embedding.
"""

import math
from typing import Any, NamedTuple

import torch

from ..optimizers import SGD, Adagrad, AdamW, RowUpdate
from . import update

States = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class FusedUpdate(NamedTuple):
    """Arguments of center_gradient_kernel."""

    optimizer: int  # its OPTIMIZER
    states: States  # its first, second and updates
    rates: tuple[float, ...]  # its step_size, decay, rate1, rate2, log_beta1, log_beta2 and eps


GRADIENT_ALONE = FusedUpdate(update.NONE.value, (None, None, None), (0.0,) * 7)


def fused_update(receive: Any) -> FusedUpdate:
    """Returns the update that a receiver of gradients stands for; GRADIENT_ALONE if the kernel does not have it."""
    if not isinstance(receive, RowUpdate):
        return GRADIENT_ALONE
    optimizer, rate, states = receive.optimizer, receive.learning_rate, receive.centers.states
    if type(optimizer) is SGD:  # a subclass may be another optimizer
        sums_gradients = optimizer.momentum_convention == "gradients"
        step_size, gain = (-rate, 1.0) if sums_gradients else (1.0, -rate)
        of_sgd = step_size, optimizer.weight_decay, optimizer.momentum, gain, 0.0, 0.0, 0.0
        return FusedUpdate(update.SGD.value, (states["weight_mom"], None, None), of_sgd)
    if type(optimizer) is AdamW:
        first, second, updates = (states[name] for name in optimizer.states)
        logarithms = [math.log(beta) if beta else -math.inf for beta in optimizer.betas]
        complements = [1 - beta for beta in optimizer.betas]
        of_adamw = rate, optimizer.weight_decay, *complements, *logarithms, optimizer.eps
        return FusedUpdate(update.ADAMW.value, (first, second, updates), of_adamw)
    if type(optimizer) is Adagrad:
        of_adagrad = rate, optimizer.weight_decay, 0.0, 0.0, 0.0, 0.0, optimizer.eps
        return FusedUpdate(update.ADAGRAD.value, (None, None, states["weight_sum"]), of_adagrad)
    return GRADIENT_ALONE
