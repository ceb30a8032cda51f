"""The options of the parts of a training: declarations, and bounds that the settings and the classes share.

A bound has the name that it has in Setting.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from .config import Setting, SettingsError, parse_options, split_options

LARGEST_RATE = 10**6  # float32, in which the learning rate acts, ends at 3e38
RATE: Mapping[str, Any] = {"at_least": 0, "at_most": LARGEST_RATE}
# The names in partial_fc_mxnet.symbol, which needs MXNet; empty stands for the network's own.
ACTIVATIONS = ("", "prelu", "relu", "sigmoid", "softrelu", "softsign", "tanh")
HEADS = ("", "FC", "E", "GAP", "GDC")
DECAY_ON = ("all", "weights")  # the keys of partial_fc_torch.optimizers.decay, which needs PyTorch
LAYER_KERNELS = ("auto", "torch", "triton")
LAYER_DTYPES = ("auto", "float32", "tf32", "bfloat16", "float16")

# Setting -> the options that it declares, for any part that it is about. The parts themselves take further ones.
OPTIONS: Mapping[str, tuple[Setting, ...]] = {
    "network_options": (
        Setting("dropout", 0.0, "fraction of features dropped before the head", at_least=0, below=1, trainer="torch"),
        Setting(
            "activation_checkpointing",
            False,
            "recompute the activations of each block in the backward pass, which takes less memory and more time",
            trainer="torch",
        ),
        Setting("compile", False, "compile the backbone with torch.compile", trainer="torch"),
        Setting("se", False, "add squeeze-and-excitation to the residual units", trainer="mxnet"),
        Setting("act", "", "activation (default: the network's own)", choices=ACTIVATIONS, trainer="mxnet"),
        Setting(
            "output",
            "",
            "head that makes the embedding; E is FC with dropout (default: the network's own)",
            choices=HEADS,
            trainer="mxnet",
        ),
        Setting(
            "bn_mom", 0.9, "momentum of the running statistics of batch norm", at_least=0, below=1, trainer="mxnet"
        ),
    ),
    "layer_options": (
        Setting("lr", 0.0, "learning rate of the class centers, for any batch size; 0 follows lr", **RATE),
        Setting(
            "tile_classes",
            0,
            "classes that the layer processes at a time; 0 chooses a number that suits the device",
            at_least=0,
            at_most=2**31,
        ),
        Setting(
            "logits_cache_mb",
            -1,
            "MiB of logits kept for the backward pass; -1 keeps 256, and with PyTorch on a GPU as many as fit",
            at_least=-1,
            at_most=2**20,
        ),
        Setting(
            "dtype",
            "auto",
            "data type of the layer's matrix products; auto is tf32 on GPUs that have it, else float32",
            choices=LAYER_DTYPES,
            trainer="torch",
        ),
        Setting(
            "kernel",
            "auto",
            "implementation of the layer: torch for PyTorch's operators, triton for fused kernels; auto uses these on "
            "GPUs that support them",
            choices=LAYER_KERNELS,
            trainer="torch",
        ),
    ),
    "optimizer_options": (
        Setting("lr", 0.0, "learning rate of the backbone, for any batch size; 0 follows lr", **RATE),
        Setting(
            "decay_on",
            "all",
            "parameters that get weight decay; weights leaves out norms, biases and positions",
            choices=DECAY_ON,
            trainer="torch",
        ),
    ),
    "schedule_options": (
        Setting(
            "warmup",
            "",
            "growth during warmup_epoch (default: quadratic with steps and epochs, otherwise linear)",
            choices=("", "linear", "quadratic"),
        ),
    ),
    "checkpoint_options": (
        Setting("minutes", 0.0, "minutes between two checkpoints; 0 saves none by time", at_least=0),
        Setting("kept", 2, "number of checkpoints to keep, the newest ones", at_least=1),
    ),
}

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

RESERVED = {"lr", "params", "momentum_convention"}  # which the training decides


def options_of(settings: Mapping[str, Any], name: str) -> SimpleNamespace:
    """Returns the values of the options that a setting declares, with their defaults."""
    given = split_options(name, settings.get(name, ""))
    return SimpleNamespace(
        **{
            each.name: each.check(each.parse(given.get(each.name, ""))) if each.name in given else each.default
            for each in OPTIONS[name]
        }
    )


def other_options(settings: Mapping[str, Any], name: str, *makers: Callable[..., Any]) -> dict[str, Any]:
    """Returns the options for the part itself; for ``makers`` see parse_options."""
    declared = {each.name for each in OPTIONS.get(name, ())}
    return {
        option: value
        for option, value in parse_options(name, settings[name], *makers).items()
        if option not in declared
    }


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
    for option in options.keys() & RESERVED:
        raise SettingsError(f"optimizer_options has {option}: remove it")
    if optimizer in ("sgd", "adamw") or optimizer.startswith("torch.optim"):
        check_options("torch.optim", options)


def number(name: str, value: Any, **bounds: Any) -> float:
    """Returns a number as float; its bounds are named as in Setting.

    Raises:
        SettingsError: It is no finite number, or outside of the bounds.
    """
    found: float = Setting(name, 0.0, "", **bounds).check(value)
    return found
