"""The optimizers of the backbone: classes of PyTorch, and our own in a file each; docs/extend.md adds one."""

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

# Name in the setting ``optimizer`` -> class, called with groups of parameters and the options of ``optimizer_options``.
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
        ValueError: there is no such class, or it is no optimizer of PyTorch.
    """
    own = OPTIMIZERS.get(name)
    found: type[torch.optim.Optimizer] = own or import_object(
        name, "optimizer", torch.optim.Optimizer, by_function=False
    )
    return found


def build_optimizer(
    backbone: nn.Module,
    name: str = "sgd",
    weight_decay: float = 5e-4,
    decay_on: str = "all",
    options: Mapping[str, Any] | None = None,
    fused: bool = False,
    factors: Mapping[str, float] | None = None,
    **of_sgd: Any,
) -> BackboneOptimizer:
    """Builds the optimizer of the trained parameters of a backbone.

    Args:
        backbone: on its device.
        name: a key of OPTIMIZERS, or ``package.module:name`` of a class derived from torch.optim.Optimizer.
        weight_decay: in the form that the optimizer has it; one without weight decay ignores it.
        decay_on: parameters with weight decay, see parameter_groups.
        options: further arguments of the class.
        factors: of the learning rate, by part of the backbone, see `factor_of`.
        fused: in one kernel, unless the options say how; an optimizer of the user's own decides for itself.
        of_sgd: those of SGD, which the others do not get.

    Raises:
        ValueError: there is no such class, or it does not take these options.
    """
    made, given = optimizer_class(name), {"lr": 0.0, **(of_sgd if name == "sgd" else {})}
    given.update(options or {})
    if fused and name in OPTIMIZERS and not given.keys() & {"foreach", "differentiable"}:
        given.setdefault("fused", True)
    groups = parameter_groups(backbone, given.pop("weight_decay", weight_decay), decay_on, factors or {})
    with errors_of(f"optimizer is {name!r}, but cannot be made with {dict(options or {})}"):
        check_optimizer_options(name, options or {})
        return BackboneOptimizer(made(groups, **given), backbone)
