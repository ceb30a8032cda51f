"""The base of our optimizers, which are not compiled.

torch.optim wraps methods of an optimizer so that torch.compile does not trace them. The wrappers import torch._dynamo
when an optimizer is built and at every step: as long as PyTorch itself takes, in every process.
"""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """torch.optim.Optimizer without those wrappers. A subclass unwraps the ``step`` that it takes from PyTorch."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
