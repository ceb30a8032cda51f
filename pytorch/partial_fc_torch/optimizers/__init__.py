"""The optimizers of the backbone: PyTorch's classes and our SGD; docs/extend.md shows how to add one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from partial_fc.utils.imports import import_object
from partial_fc.utils.options import check_optimizer_options
from partial_fc.utils.user_code import errors_of

from .backbone_optimizer import BackboneOptimizer
from .decay import parameter_groups
from .parts import freeze, frozen_modules, read_factors
from .sgd import SGD

# Name in the setting ``optimizer`` -> class, which is called with parameter groups and ``optimizer_options``.
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"sgd": SGD, "adamw": torch.optim.AdamW}

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "BackboneOptimizer",
    "build_optimizer",
    "freeze",
    "frozen_modules",
    "optimizer_class",
    "read_factors",
]


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Returns the class that the setting ``optimizer`` names.

    Raises:
        ValueError: The class does not exist, or is not a subclass of torch.optim.Optimizer.
    """
    optimizer: type[torch.optim.Optimizer] = OPTIMIZERS.get(name) or import_object(
        name, "optimizer", torch.optim.Optimizer, by_function=False
    )
    return optimizer


def build_optimizer(
    backbone: nn.Module,
    name: str = "sgd",
    weight_decay: float = 5e-4,
    decay_on: str = "all",
    options: Mapping[str, Any] | None = None,
    fused: bool = False,
    factors: Mapping[str, float] | None = None,
    **sgd_options: Any,
) -> BackboneOptimizer:
    """Builds an optimizer for the parameters of a backbone that require gradients.

    Args:
        backbone: on its device.
        name: a key of OPTIMIZERS, or ``package.module:name`` of a subclass of torch.optim.Optimizer.
        weight_decay: the optimizer's ``weight_decay``; an optimizer without weight decay ignores it.
        decay_on: which parameters have weight decay, see parameter_groups.
        options: further arguments of the class.
        fused: uses PyTorch's fused implementation, unless ``options`` select another one or the class is a user's.
        factors: multiply the learning rate, by part of the backbone, see `factor_of`.
        sgd_options: arguments that only SGD takes; ignored for other optimizers.

    Raises:
        ValueError: The class does not exist, or does not take these options.
    """
    arguments = {"lr": 0.0, **(sgd_options if name == "sgd" else {}), **(options or {})}
    if fused and name in OPTIMIZERS and not arguments.keys() & {"foreach", "differentiable"}:
        arguments.setdefault("fused", True)
    groups = parameter_groups(backbone, arguments.pop("weight_decay", weight_decay), decay_on, factors or {})
    make = optimizer_class(name)
    with errors_of(f"optimizer is {name!r}, but cannot be created with {dict(options or {})}"):
        check_optimizer_options(name, options or {})
        return BackboneOptimizer(make(groups, **arguments), backbone)
