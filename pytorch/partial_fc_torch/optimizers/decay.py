"""Parameter groups of a backbone by weight decay and learning rate."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from .parts import factor_of


def parameter_groups(
    backbone: nn.Module, weight_decay: float, decay_on: str, factors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Returns the trained parameters as groups of an optimizer, each in the order of the backbone.

    Args:
        backbone: may have a method ``no_weight_decay()``, as timm's models do, that names parameters without decay.
        weight_decay: applies to the parameters that decay.
        decay_on: "all" parameters, as in arcface_torch; or "weights", kernels and matrices whose name ends with
            "weight", which excludes the scales and offsets of norms, slopes, biases, positions and tokens.
        factors: multiply the learning rate, by part; see `factor_of`.
    """
    exempt = set(getattr(backbone, "no_weight_decay", set)())
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            is_weight = name.endswith("weight") and parameter.ndim > 1 and name not in exempt
            groups.setdefault((decay_on == "all" or is_weight, factor_of(name, factors)), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if decayed else 0.0, "rate_factor": factor}
        for (decayed, factor), parameters in sorted(groups.items(), key=lambda group: group[0], reverse=True)
    ]
