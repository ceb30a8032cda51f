"""SGD with momentum in PyTorch's and in MXNet's convention."""

import inspect
from typing import Any

import torch

from ..eager_optimizer import EagerOptimizer


class SGD(EagerOptimizer, torch.optim.SGD):
    """torch.optim.SGD whose momentum sums gradients, as in PyTorch, or steps, as in MXNet; see SGDParams.

    Args:
        groups: parameter groups.
        momentum_convention: "gradients" or "steps".
        options: further arguments of torch.optim.SGD.
    """

    _update = inspect.unwrap(torch.optim.SGD.step)

    def __init__(self, groups: list[dict[str, Any]], momentum_convention: str = "gradients", **options: Any):
        super().__init__(groups, **options)
        self.momentum_convention = momentum_convention
        # Sign of saved momentum relative to momentum_buffer: PyTorch subtracts the steps that MXNet adds.
        self.momentum_sign = 1 if momentum_convention == "gradients" else -1
        # torch.optim.SGD creates momentum in the first step, but a checkpoint needs it even if float16 has skipped all
        # updates so far.
        for group in self.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        """See torch.optim.SGD."""
        if self.momentum_convention == "gradients":
            return self._update(closure)
        # The sum of steps is the sum of gradients times their own step's rate, and is applied with rate 1.
        rates = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        for group, (rate, decay) in zip(self.param_groups, rates):
            gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
            torch._foreach_mul_(gradients, rate)
            group["lr"], group["weight_decay"] = 1.0, rate * decay
        loss = self._update(closure)
        for group, (rate, decay) in zip(self.param_groups, rates):
            group["lr"], group["weight_decay"] = rate, decay
        return loss
