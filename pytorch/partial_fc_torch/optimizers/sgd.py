"""SGD with momentum in both conventions."""

import inspect
from typing import Any

import torch

from ..eager_optimizer import EagerOptimizer


class SGD(EagerOptimizer, torch.optim.SGD):
    """torch.optim.SGD, or with momentum that sums steps as MXNet's, see SGDParams.

    Args:
        groups: of parameters.
        momentum_convention: "gradients" or "steps", what the momentum sums.
        options: of torch.optim.SGD.
    """

    _update = inspect.unwrap(torch.optim.SGD.step)

    def __init__(self, groups: list[dict[str, Any]], momentum_convention: str = "gradients", **options: Any):
        super().__init__(groups, **options)
        self.momentum_convention = momentum_convention
        # From the beginning, as a checkpoint has it also where float16 has skipped all updates so far.
        for group in self.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @property
    def momentum_sign(self) -> int:
        """Of saved momentum, beside ``momentum_buffer``: PyTorch subtracts steps that MXNet adds."""
        return 1 if self.momentum_convention == "gradients" else -1

    @torch.no_grad()
    def step(self, closure=None):
        """See torch.optim.SGD; momentum that sums steps gets the gradients of this step times its learning rate."""
        if self.momentum_convention == "gradients":
            return self._update(closure)
        rates = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        for group, (rate, decay) in zip(self.param_groups, rates):
            gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
            torch._foreach_mul_(gradients, rate)
            group["lr"], group["weight_decay"] = 1.0, rate * decay
        loss = self._update(closure)
        for group, (rate, decay) in zip(self.param_groups, rates):
            group["lr"], group["weight_decay"] = rate, decay
        return loss
