"""Bounds of the options of margins, optimizers and schedules, which the settings and the classes check by one table.

A bound has the name that it has in Setting.
"""

from collections.abc import Mapping
from typing import Any

from .config import Setting, SettingsError

SHARE, DECAY, ANGLE = {"at_least": 0, "at_most": 1}, {"at_least": 0, "below": 1}, {"at_least": 0, "at_most": 3}
NORM = {"above": 0, "at_most": 10**4}

# What takes the options -> name of an option -> bounds of the number, or of each of several.
BOUNDS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "combined": {
        "s": {"above": 0, "at_most": 10**4},  # of all margins
        # Beyond them the target logit would not grow with the cosine, or be easier to reach than the other logits.
        "m1": {"above": 0, "at_most": 100},
        **dict.fromkeys(("m2", "m3"), {"at_least": 0, "at_most": 10}),
        "interclass_filtering_threshold": DECAY,
    },
    "adaface": {"m": ANGLE, "h": {"above": 0, "at_most": 10}, "t_alpha": {"above": 0, "at_most": 1}},
    "magface": {"l_a": NORM, "u_a": NORM, "l_m": ANGLE, "u_m": ANGLE, "lambda_g": {"at_least": 0, "at_most": 10**4}},
    "curricularface": {"m": ANGLE},
    "polynomial": {"power": {"above": 0, "at_most": 100}},
    "cosine": {"final": SHARE},
    "torch.optim": {  # of all of its classes
        **dict.fromkeys(("momentum", "betas", "alpha", "rho"), DECAY),
        **dict.fromkeys(("dampening", "weight_decay", "lr_decay", "momentum_decay", "lambd"), SHARE),
        "eps": {"above": 0, "at_most": 1},
    },
}

SETTING_FOR = {"lr": ", and set lr or backbone_lr", "params": "", "momentum_convention": ""}


def checked(name: str, **options: Any) -> list[float]:
    """Returns the values of options of a key of BOUNDS as numbers; raises SettingsError, which names a bad one."""
    return [number(option, value, **BOUNDS[name][option]) for option, value in options.items()]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises SettingsError for options outside of the bounds of a key of BOUNDS; it may have others, and tuples."""
    for option, value in options.items():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if option in BOUNDS.get(name, {}) and each is not None:
                number(option, each, **BOUNDS[name][option])


def check_optimizer_options(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raises SettingsError for options of a named optimizer that settings decide, or outside of PyTorch's bounds."""
    for option in options.keys() & SETTING_FOR.keys():
        raise SettingsError(f"optimizer_options has {option}: remove it{SETTING_FOR[option]}")
    if optimizer in ("sgd", "adamw") or optimizer.startswith("torch.optim"):
        check_options("torch.optim", options)


def number(name: str, value: Any, **bounds: Any) -> float:
    """Returns a number as float; its bounds are named as in Setting.

    Raises:
        SettingsError: It is no finite number, or outside of the bounds.
    """
    found: float = Setting(name, 0.0, "", **bounds).check(value)
    return found
