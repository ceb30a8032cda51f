"""A base class for optimizers that are not compiled.

torch.optim wraps methods of an optimizer so that torch.compile does not trace them. The wrappers import torch._dynamo,
which takes as long as importing torch itself, in every process.
"""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """torch.optim.Optimizer without these wrappers. A subclass also unwraps a ``step`` that it inherits."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
