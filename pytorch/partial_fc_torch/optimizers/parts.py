"""Learning rates of parts of a backbone, for fine-tuning: each part has a factor; 0 freezes it."""

import difflib
from collections.abc import Mapping, Sequence

from torch import nn

from partial_fc.utils.options import number


def read_factors(settings: Sequence[str]) -> dict[str, float]:
    """Reads the setting ``part_rates``, whose items are the name of a module or parameter, "=", and its factor.

    Raises:
        ValueError: An item has another form, or a factor is out of range.
    """
    factors = {}
    for text in settings:
        name, _, factor = (part.strip() for part in text.partition("="))
        if name in factors:
            raise ValueError(f"part_rates has {name} twice: give it one factor")
        try:
            factors[name] = number("the factor", float(factor), at_least=0, at_most=10**4)
        except ValueError as error:
            raise ValueError(f"part_rates has {text!r}, but must be like layer1=0.1 ({error})") from None
    return factors


def factor_of(name: str, factors: Mapping[str, float]) -> float:
    """Returns the factor of the smallest part that contains a module or parameter; 1 if none does."""
    parts = [part for part in factors if name == part or name.startswith(part + ".")]
    return factors[max(parts, key=len)] if parts else 1.0


def freeze(backbone: nn.Module, factors: Mapping[str, float]) -> None:
    """Excludes the parameters with a factor of 0 from training.

    Raises:
        ValueError: The backbone lacks a part, or no parameter is left to train.
    """
    known = [name for name, _ in [*backbone.named_modules(), *backbone.named_parameters()] if name]
    for part in factors.keys() - set(known):
        near = difflib.get_close_matches(part, known, n=1, cutoff=0.0)
        raise ValueError(f"part_rates has {part!r}, which the backbone does not have: did you mean {near[0]!r}?")
    for name, parameter in backbone.named_parameters():
        if factor_of(name, factors) == 0:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise ValueError("part_rates leaves no parameter of the backbone to train: give a part a factor above 0")


def frozen_modules(backbone: nn.Module, factors: Mapping[str, float]) -> list[nn.Module]:
    """Returns the modules that are frozen with all their submodules.

    In a training they stay in evaluation mode: their running statistics do not change, and they drop nothing.
    """
    rates = {name: factor_of(name, factors) for name, _ in backbone.named_modules() if name}
    return [
        module
        for name, module in backbone.named_modules()
        if name and not any(rate for other, rate in rates.items() if other == name or other.startswith(name + "."))
    ]
