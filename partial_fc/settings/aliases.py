"""Names that settings had in earlier versions, or have in the original trainers and in arcface_torch.

They keep working on the command line, in config.py and in a settings.json.
"""

from collections.abc import Mapping
from typing import Any

from partial_fc.utils.config import Alias, Setting
from partial_fc.utils.options import RATE

SHARE: Mapping[str, Any] = {"at_least": 0, "at_most": 1}
LR_FUNC = Setting("lr_func", [], "", item=float, function=True, **RATE)

# Former settings that are now options of a part and declared there, not by the ``*_options`` setting.
_CUTOUT = Alias("task_options", ("cutout",), Setting("cutout", 0, "", at_least=0))
_MIN_IMAGES = Alias("task_options", ("min_images_per_class",), Setting("min_images_per_class", 0, "", at_least=0))
_MARGINS = Alias(
    "margin_options", ("m1", "m2", "m3"), Setting("margins", (1.0, 0.5, 0.0), "", item=float, length=3, by_epoch=True)
)
_STEPS = Setting("lr_steps", [], "", item=int, at_least=1)
_LOGITS_CACHE = Alias("layer_options", ("logits_cache_mb",))

ALIASES = {
    "dummy_data": Alias("debug"),
    "frequent": Alias("log_every"),
    "num_workers": Alias("decode_threads"),
    "sample_rate": Alias("sample_ratio"),
    "verbose": Alias("verify_every"),
    "weight_decay": Alias("wd"),
    # network_options
    **{name: Alias("network_options", (name,)) for name in ("dropout", "activation_checkpointing", "bn_mom")},
    **{f"net_{name}": Alias("network_options", (name,)) for name in ("se", "act", "output")},
    "compile_backbone": Alias("network_options", ("compile",)),
    # task_options of the task "faces"
    "cutout": _CUTOUT,
    "cutoff": _CUTOUT,
    "color_jittering": Alias("task_options", ("color_jittering",), Setting("color_jittering", 0.0, "", **SHARE)),
    "jpeg_compression": Alias(
        "task_options", ("jpeg_compression",), Setting("jpeg_compression", 0, "", at_least=0, at_most=100)
    ),
    "min_images_per_class": _MIN_IMAGES,
    "images_filter": _MIN_IMAGES,
    "resize": Alias("task_options", ("resize",), Setting("resize", False, "")),
    # margin_options of the margin "combined"
    "margins": _MARGINS,
    "margin_list": _MARGINS,
    "interclass_filtering_threshold": Alias(
        "margin_options",
        ("interclass_filtering_threshold",),
        Setting("interclass_filtering_threshold", 0.0, "", at_least=0, below=1),
    ),
    # layer_options
    "memory_bank_lr": Alias("layer_options", ("lr",)),
    "layer_dtype": Alias("layer_options", ("dtype",)),
    "layer_kernel": Alias("layer_options", ("kernel",)),
    "logits_cache_mb": _LOGITS_CACHE,
    "kept_mb": _LOGITS_CACHE,
    "tile_classes": Alias("layer_options", ("tile_classes",)),
    # optimizer_options
    "backbone_lr": Alias("optimizer_options", ("lr",)),
    "decay_on": Alias("optimizer_options", ("decay_on",)),
    # schedule_options, and the schedule itself
    "lr_steps": Alias("schedule_options", ("steps",), _STEPS, sets_part=True),
    "lr_epochs": Alias("schedule_options", ("epochs",), _STEPS, sets_part=True),
    "lr_func": Alias("schedule_options", ("factors",), LR_FUNC, sets_part=True),
    "warmup": Alias("schedule_options", ("warmup",)),
    # checkpoint_options
    "checkpoint_minutes": Alias("checkpoint_options", ("minutes",)),
    "checkpoints_kept": Alias("checkpoint_options", ("kept",)),
}
