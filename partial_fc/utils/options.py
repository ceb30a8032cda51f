"""Options of the parts of a training: their declarations, and bounds that settings and classes share.

Bounds are named as in Setting.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from .config import Setting, SettingsError, parse_options, split_options

LARGEST_RATE = 10**6  # far below the float32 maximum of 3e38, so that a scaled rate stays finite
RATE: Mapping[str, Any] = {"at_least": 0, "at_most": LARGEST_RATE}
# Names in partial_fc_mxnet.symbol, which cannot be imported without MXNet; empty selects the network's own.
ACTIVATIONS = ("", "prelu", "relu", "sigmoid", "softrelu", "softsign", "tanh")
HEADS = ("", "FC", "E", "GAP", "GDC")
DECAY_ON = ("all", "weights")  # keys of partial_fc_torch.optimizers.decay, which cannot be imported without PyTorch
LAYER_KERNELS = ("auto", "torch", "mm", "triton")
UNIT_COPIES = {"auto": None, "always": True, "never": False}  # value of unit_copy -> argument of the layer
CENTER_DTYPES = {"float32": 4, "bfloat16": 2}  # types of stored centers and states of E numbers -> bytes of a number
LAYER_DTYPES = ("auto", "float32", "tf32", "bfloat16", "float16")

# Setting -> declared options, which hold for every part that it selects. A part may take further options.
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
            "head: fully connected (FC), with dropout before (E), global average (GAP) or depthwise (GDC) pooling "
            "(default: the network's own)",
            choices=HEADS,
            trainer="mxnet",
        ),
        Setting(
            "bn_mom", 0.9, "momentum of the running statistics of batch norm", at_least=0, below=1, trainer="mxnet"
        ),
    ),
    "margin_options": (
        Setting(
            "ramp",
            "linear",
            "growth between the [epoch,value] pairs of an option",
            choices=("linear", "exponential"),
            trainer="torch",
        ),
    ),
    "layer_options": (
        Setting("lr", 0.0, "learning rate of the class centers, for any batch size; 0 follows lr", **RATE),
        Setting(
            "sub_centers",
            1,
            "centers per class; an item is compared with the nearest one",
            at_least=1,
            at_most=255,
            trainer="torch",
        ),
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
            "data type of the layer's matrix products; auto is float16 on GPUs that have tf32, else float32",
            choices=LAYER_DTYPES,
            trainer="torch",
        ),
        Setting(
            "center_dtype",
            "float32",
            "data type in which the class centers and their momentum are stored; bfloat16 takes half the memory",
            choices=tuple(CENTER_DTYPES),
            trainer="torch",
        ),
        Setting(
            "kernel",
            "auto",
            "implementation of the layer on a GPU: torch for PyTorch's operators, mm for kernels between its matrix "
            "products, triton for kernels with products; auto uses the fastest",
            choices=LAYER_KERNELS,
            trainer="torch",
        ),
        Setting(
            "unit_copy",
            "auto",
            "whether these kernels keep the unit rows of all class centers in 16 bits; auto if the memory is free",
            choices=tuple(UNIT_COPIES),
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
            "growth of the rates during warmup_epoch (default: quadratic with steps and epochs, otherwise linear)",
            choices=("", "linear", "quadratic"),
        ),
    ),
    "checkpoint_options": (
        Setting("minutes", 0.0, "minutes between two checkpoints; 0 never saves by time", at_least=0),
        Setting("kept", 2, "number of checkpoints to keep, the newest ones", at_least=1),
    ),
}

SHARE, DECAY, ANGLE = {"at_least": 0, "at_most": 1}, {"at_least": 0, "below": 1}, {"at_least": 0, "at_most": 3}
NORM = {"above": 0, "at_most": 10**4}

# Part -> option -> bounds of the number, or of each number of a tuple.
BOUNDS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "combined": {
        "s": {"above": 0, "at_most": 10**4},  # for all margins
        # Outside them the target logit would either not grow with the cosine, or be easier to reach than the others.
        "m1": {"above": 0, "at_most": 100},
        **dict.fromkeys(("m2", "m3"), {"at_least": 0, "at_most": 10}),
        "interclass_filtering_threshold": DECAY,
    },
    "adaface": {"m": ANGLE, "h": {"above": 0, "at_most": 10}, "t_alpha": {"above": 0, "at_most": 1}},
    "magface": {"l_a": NORM, "u_a": NORM, "l_m": ANGLE, "u_m": ANGLE, "lambda_g": {"at_least": 0, "at_most": 10**4}},
    "curricularface": {"m": ANGLE},
    "inter_topk": {"m": ANGLE, "k": {"at_least": 1, "at_most": 1000}, "penalty": ANGLE},
    "sphereface2": {
        "m": {"at_least": 0, "at_most": 2},
        "t": {"at_least": 1, "at_most": 100},
        "weight": {"above": 0, "below": 1},
        "loss_weight": {"above": 0, "at_most": 10**4},
    },
    "uniface": {"weight": {"above": 0, "at_most": 10**4}},
    "polynomial": {"power": {"above": 0, "at_most": 100}},
    "cosine": {"final": SHARE},
    "exponential": {"final": {"above": 0, "at_most": 1}},
    "metrics": {  # of partial_fc/evaluation/metrics
        **dict.fromkeys(("ranks", "neighbors"), {"at_least": 1}),
        **dict.fromkeys(("fars", "fpirs"), {"at_least": 0, "at_most": 1}),
        "p_target": {"above": 0, "below": 1},
        **dict.fromkeys(("c_miss", "c_fa"), {"above": 0}),
    },
    "torch.optim": {  # for all of its classes
        **dict.fromkeys(("momentum", "betas", "alpha", "rho"), DECAY),
        **dict.fromkeys(("dampening", "weight_decay", "lr_decay", "momentum_decay", "lambd"), SHARE),
        "eps": {"above": 0, "at_most": 1},
    },
}

RESERVED = {"lr", "params", "momentum_convention"}  # options that the training sets


def options_of(settings: Mapping[str, Any], name: str) -> SimpleNamespace:
    """Returns the values of the options that a setting declares, or their defaults."""
    texts = split_options(name, settings.get(name, ""))
    return SimpleNamespace(
        **{
            option.name: option.check(option.parse(texts[option.name])) if option.name in texts else option.default
            for option in OPTIONS[name]
        }
    )


def other_options(settings: Mapping[str, Any], name: str, *makers: Callable[..., Any]) -> dict[str, Any]:
    """Returns the options for the part itself, which the setting does not declare; for ``makers`` see parse_options."""
    declared = {option.name for option in OPTIONS.get(name, ())}
    options = parse_options(name, settings[name], *makers)
    return {option: value for option, value in options.items() if option not in declared}


def checked(name: str, **options: Any) -> list[float]:
    """Returns option values as floats; raises SettingsError for one outside BOUNDS[name]."""
    return [number(option, value, **BOUNDS[name][option]) for option, value in options.items()]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises SettingsError for options outside BOUNDS[name]; ignores options without bounds. Values may be tuples."""
    for option, value in options.items():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if option in BOUNDS.get(name, {}) and each is not None:
                number(option, each, **BOUNDS[name][option])


def check_optimizer_options(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raises SettingsError for optimizer options that the training sets, or outside PyTorch's bounds."""
    for option in options.keys() & RESERVED:
        raise SettingsError(f"optimizer_options has {option}: remove it")
    if optimizer in ("sgd", "adamw") or optimizer.startswith("torch.optim"):
        check_options("torch.optim", options)


def number(name: str, value: Any, **bounds: Any) -> float:
    """Returns a number as float.

    Raises:
        SettingsError: The value is not a finite number, or is out of bounds.
    """
    checked_value: float = Setting(name, 0.0, "", **bounds).check(value)
    return checked_value
