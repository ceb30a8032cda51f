"""Keys of an arcface_torch configuration -> settings of this project.

The keys are those of insightface's recognition/arcface_torch/configs/base.py and train_v2.py, from 2022 on.

- ``lr`` is the rate of an update, whatever the global batch; only versions before 2022 multiplied it by G / 512.
- The rate of update t grows as t / w during the warm-up of w updates, then falls as 1 - (t - w) / (total - w).
- ``momentum`` is used; arcface_torch always uses 0.9.
- ``gradient_acc`` averages the gradients of its parts; arcface_torch adds them.

Shapes: B local batch, R ranks, G = B*R.
"""

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from partial_fc.utils.config import Setting, SettingsError, join_options
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import quoted

from .config_file import Recipe

Settings = dict[str, Any]

# Keys of base.py with their values.
DEFAULTS = {
    "margin_list": (1.0, 0.5, 0.0),
    "network": "r50",
    "output": None,
    "embedding_size": 512,
    "sample_rate": 1.0,
    "interclass_filtering_threshold": 0.0,
    "fp16": False,
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "verbose": 2000,
    "frequent": 10,
    "gradient_acc": 1,
    "seed": 2048,
    "suffix_run_name": None,
    "using_wandb": False,
    "wandb_key": "",
    "wandb_entity": None,
    "wandb_project": None,
    "save_artifacts": False,
}
# Data sets of this project -> settings. The mirror image of a character is another character.
OWN_SETS: dict[str, Settings] = {"demo": {}, **dict.fromkeys(("glyphs", "glyphs500"), {"rand_mirror": False})}
REQUIRED = ("rec", "num_classes", "num_epoch", "warmup_epoch", "val_targets")
SYNTHETIC = "synthetic"  # the value of rec that stands for dummy images
SYNTHETIC_IMAGES = 1000000  # per epoch, unless num_image is given
# Key -> setting of the same meaning.
SAME = {
    **{
        name: name
        for name in (
            *("network", "output", "embedding_size", "interclass_filtering_threshold", "fp16", "batch_size", "lr"),
            *("momentum", "num_classes", "num_epoch", "warmup_epoch", "max_update", "warmup_steps", "val_targets"),
            *("gradient_acc", "seed"),
        )
    },
    "sample_rate": "sample_ratio",
    "weight_decay": "wd",
    "verbose": "verify_every",
    "frequent": "log_every",
    "num_workers": "decode_threads",
}
# Key -> why it becomes no setting.
NOTES = {
    "num_image": "read from the data set",
    "dali": "all images are read by the same code",
    "save_all_states": "checkpoints have all states",
    **dict.fromkeys(("published", "gpus"), "for partial-fc recipes check"),
    "wandb_key": "the variable WANDB_API_KEY, with using_wandb",
    **dict.fromkeys(
        ("wandb_entity", "wandb_project", "suffix_run_name", "save_artifacts"),
        "an option of the tracker, with using_wandb",
    ),
    "wandb_log_all": "the figures include all processes",
    "wandb_resume": "a training that resumes continues its run",
}
# Keys that _translate_key translates one by one.
RULES = ("margin_list", "rec", "resume", "dali_aug", "optimizer", "using_wandb", "decay_epoch")


class Translation(NamedTuple):
    """The settings of a configuration."""

    settings: Settings  # by name
    environment: dict[str, str]  # environment variables to set
    rows: list[tuple[str, str, str]]  # key, value and what it becomes

    def lines(self) -> list[str]:
        """Returns the translation as a table."""
        return format_table([("key", "value", "here"), *self.rows])


def translate(recipe: Recipe, ranks: int) -> Translation:
    """Translates all keys of a configuration.

    Args:
        recipe: see `read_recipe`.
        ranks: R, which determines the length of a training on dummy images.

    Raises:
        SettingsError: Keys are unknown, missing or not supported; names all of them with what to do.
    """
    config = {**DEFAULTS, **recipe.config}
    if config["output"] is None:
        config["output"] = f"work_dirs/{recipe.name}"
    settings: Settings = {
        "dataset": "own",
        "loss": "own",
        "margin": "combined",
        "schedule": "polynomial",
        "lr_reference_batch": 0,
    }
    rows, refused = [], [f"{key} is missing" for key in REQUIRED if key not in config]
    if isinstance(config.get("rec"), str) and config["rec"] == SYNTHETIC:
        config = _with_updates(config, ranks)
    for key, value in config.items():
        try:
            translated, note = _translate_key(key, value, config)
        except SettingsError as error:
            refused.append(str(error))
            continue
        except (TypeError, ValueError):
            refused.append(f"{key} is {quoted(value)}, which is not of the type that {key} takes")
            continue
        settings.update(translated)
        if not translated and key not in recipe.config:
            continue  # a default that means nothing here
        shown = "..." if key == "wandb_key" and value else repr(value)
        rows.append((key, shown, ", ".join(f"{name}={each!r}" for name, each in translated.items()) or note))
    if refused:
        raise SettingsError("; ".join([f"{recipe.name} cannot be trained as it is: {refused[0]}", *refused[1:]]))
    key = config["wandb_key"] if config["using_wandb"] else ""
    return Translation(settings, {"WANDB_API_KEY": str(key)} if key else {}, rows)


def _with_updates(config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Returns a configuration on dummy images, which have no epochs, with its length in updates."""
    lengths = {"num_epoch": "max_update", "warmup_epoch": "warmup_steps"}
    config = {"num_image": SYNTHETIC_IMAGES, **config}
    for key in ("batch_size", "gradient_acc", "num_image", *lengths):
        if key in config:
            Setting(key, 1, "", at_least=None if key in lengths else 1).check(config[key])
    updates_per_epoch = config["num_image"] // (config["batch_size"] * config["gradient_acc"] * ranks)
    others = {key: value for key, value in config.items() if key not in lengths}
    return {
        **others,
        **{name: max(0, updates_per_epoch * config[key]) for key, name in lengths.items() if key in config},
    }


def _translate_key(key: str, value: Any, config: Mapping[str, Any]) -> tuple[Settings, str]:
    """Returns the settings that a key becomes, or why there are none."""
    if key in SAME:
        return {SAME[key]: value}, ""
    if key in NOTES:
        return {}, NOTES[key]
    match key:
        case "margin_list":
            return {"margins": tuple(value)}, ""
        case "rec" if value == SYNTHETIC:
            return {"debug": True}, ""
        case "rec" if value in OWN_SETS:
            return {"dataset": value, **OWN_SETS[value]}, ""
        case "rec":
            return {"rec": value}, ""
        case "resume":
            return {"resume": "auto" if value else ""}, ""
        case "optimizer" if value in ("sgd", "adamw"):
            return {"optimizer": value, "center_optimizer": value}, ""
        case "optimizer":
            raise SettingsError(f"optimizer is {value!r}, but must be 'sgd' or 'adamw'")
        case "using_wandb" if value:
            options = {
                "project": config["wandb_project"],
                "entity": config["wandb_entity"],
                "run_name": config["suffix_run_name"],
                "artifacts": config["save_artifacts"] or None,
            }
            texts = {name: repr(option) for name, option in options.items() if option is not None}
            return {"trackers": ["tensorboard", "wandb"], "tracker_options": join_options(texts)}, ""
        case "dali_aug" if value:
            raise SettingsError(
                "dali_aug is DALI's augmentation: set it to False, and add "
                "task_options=color_jittering=0.2,jpeg_compression=30,cutout=40 or the like to the command"
            )
        case "using_wandb" | "dali_aug":
            return {}, "nothing to set"
        case "decay_epoch":
            raise SettingsError(
                "decay_epoch is of a version before 2022, whose lr is for a global batch of 512: train it with "
                "train.py and lr_epochs"
            )
    near = difflib.get_close_matches(key, [*SAME, *NOTES, *RULES], n=1)
    raise SettingsError(f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else ": remove it"))
