"""Names that settings had in earlier versions, or have in the original trainers and in arcface_torch.

They keep working on the command line, in config.py and in a settings.json.
"""

from collections.abc import Mapping
from typing import Any

from partial_fc.utils.config import Alias, Setting
from partial_fc.utils.options import RATE

SHARE: Mapping[str, Any] = {"at_least": 0, "at_most": 1}


def _option_of_faces(setting: Setting) -> Alias:
    return Alias("task_options", (setting.name,), setting)


_MARGINS = Alias("margin_options", ("m1", "m2", "m3"), Setting("margins", (1.0, 0.5, 0.0), "", item=float, length=3))
_CUTOUT = _option_of_faces(Setting("cutout", 0, "", at_least=0))
_FEWEST = _option_of_faces(Setting("min_images_per_class", 0, "", at_least=0))
_LOGITS_CACHE = Alias("layer_options", ("logits_cache_mb",))


def _schedule(name: str, declared: Setting) -> Alias:
    return Alias("schedule_options", (name,), declared, of_part=name)


_STEPS = Setting("lr_steps", [], "", item=int, at_least=1)
LR_FUNC = Setting("lr_func", [], "", item=float, function=True, **RATE)
ALIASES = {
    # Other names
    "dummy_data": Alias("debug"),
    "frequent": Alias("log_every"),
    "num_workers": Alias("decode_threads"),
    "sample_rate": Alias("sample_ratio"),
    "verbose": Alias("verify_every"),
    "weight_decay": Alias("wd"),
    # Options of the network
    **{name: Alias("network_options", (name,)) for name in ("dropout", "activation_checkpointing", "bn_mom")},
    **{f"net_{name}": Alias("network_options", (name,)) for name in ("se", "act", "output")},
    "compile_backbone": Alias("network_options", ("compile",)),
    # Options of the task "faces"
    "cutout": _CUTOUT,
    "cutoff": _CUTOUT,
    "color_jittering": _option_of_faces(Setting("color_jittering", 0.0, "", **SHARE)),
    "jpeg_compression": _option_of_faces(Setting("jpeg_compression", 0, "", at_least=0, at_most=100)),
    "min_images_per_class": _FEWEST,
    "images_filter": _FEWEST,
    # Options of the margin "combined"
    "margins": _MARGINS,
    "margin_list": _MARGINS,
    "interclass_filtering_threshold": Alias(
        "margin_options",
        ("interclass_filtering_threshold",),
        Setting("interclass_filtering_threshold", 0.0, "", at_least=0, below=1),
    ),
    # Options of the layer
    "memory_bank_lr": Alias("layer_options", ("lr",)),
    "layer_dtype": Alias("layer_options", ("dtype",)),
    "layer_kernel": Alias("layer_options", ("kernel",)),
    "logits_cache_mb": _LOGITS_CACHE,
    "kept_mb": _LOGITS_CACHE,
    "tile_classes": Alias("layer_options", ("tile_classes",)),
    # Options of the optimizer of the backbone
    "backbone_lr": Alias("optimizer_options", ("lr",)),
    "decay_on": Alias("optimizer_options", ("decay_on",)),
    # The schedule, and its options
    "lr_steps": _schedule("steps", _STEPS),
    "lr_epochs": _schedule("epochs", _STEPS),
    "lr_func": _schedule("factors", LR_FUNC),
    "warmup": Alias("schedule_options", ("warmup",)),
    # Options of checkpoints
    "checkpoint_minutes": Alias("checkpoint_options", ("minutes",)),
    "checkpoints_kept": Alias("checkpoint_options", ("kept",)),
}
_DESCRIBED = ("lr_steps", "lr_epochs", "lr_func")


def without_empty_schedule(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns settings without an empty schedule, which earlier stood for the one of lr_steps, lr_epochs or lr_func."""
    if not isinstance(values, Mapping) or values.get("schedule") != "":
        return values
    rest = {name: value for name, value in values.items() if name != "schedule"}
    if all(values.get(name) == [] for name in _DESCRIBED):  # a settings.json, which has all three
        rest["schedule"] = "constant"
    return rest
