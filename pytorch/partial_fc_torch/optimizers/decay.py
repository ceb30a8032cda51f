"""Which parameters of a backbone have weight decay."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(backbone: nn.Module, weight_decay: float, decay_on: str) -> list[dict[str, Any]]:
    """Returns the trained parameters as groups of an optimizer, in the order of the backbone within each.

    Args:
        backbone: a method ``no_weight_decay()`` may name further parameters without decay, as timm's models have it.
        weight_decay: of those that have it.
        decay_on: "all" parameters, as arcface_torch; or "weights", kernels and matrices with a name that ends with
            "weight", and so no scales and offsets of norms, slopes, biases, positions or tokens.
    """
    exempt = set(getattr(backbone, "no_weight_decay", set)())
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            is_weight = name.endswith("weight") and parameter.ndim > 1 and name not in exempt
            (decayed if decay_on == "all" or is_weight else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
