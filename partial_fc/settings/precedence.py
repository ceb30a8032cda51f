"""Which value of a setting wins.

Later ones win: the declared defaults, the defaults of a trainer, the presets that ``dataset``, ``network`` and ``loss``
name, the user's config.py, a recipe or a saved settings.json, and the user's changes.
"""

import os
from collections.abc import Mapping
from itertools import chain
from typing import Any

from partial_fc.data.sources.forms import is_name, set_path
from partial_fc.training.schedules import tabulate_rates
from partial_fc.utils.config import read_settings
from partial_fc.utils.imports import refuse_code

from .checks import check_loss, check_settings
from .declarations import KNOWN, SETTINGS
from .presets import PRESETS, TRAINERS

Settings = dict[str, Any]
# What a saved preset stands for beside its settings.
OF_PRESET = {"dataset": ("rec",), "network": (), "loss": ("interclass_filtering_threshold",)}
KEYWORDS = ("", "auto", "same")  # values of path settings that are not paths


def resolve_settings(
    changes: Mapping[str, Any],
    trainer: str,
    user_config: Mapping[str, Any],
    root: str,
    config_file: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> Settings:
    """Returns all settings of a training.

    Args:
        changes: Settings by name that win over all others, such as the ones of the command line.
        trainer: "mxnet" or "torch", see TRAINERS.
        user_config: Settings of config.py by name.
        root: Folder in which relative paths start.
        config_file: Path of a settings.json, or None. Its values win over presets and config.py. If ``changes`` names
            another preset, what the two presets set is not taken from the file.
        recipe: Settings by name in place of a ``config_file``, or None.
        trust_code: Whether a ``config_file`` may name code that nothing else names, see refuse_code.

    Raises:
        SettingsError: A name is unknown, or a value is not allowed.
    """
    path = absolute(config_file, root) if config_file else ""
    sources = (("config.py", user_config), (path, {**(recipe or {}), **read_saved(path)}), ("", changes))
    user, saved, own = (SETTINGS.read(source, values, trainer) for source, values in sources)
    typed = {*user_config, *changes}
    named = typed.union(sources[1][1])  # without the defaults, which `read` adds, of what a value replaces
    names = {**SETTINGS.defaults(), **user, **saved, **own}
    if "dataset" not in named and (names["rec"] or names["data_name"] or names["task"] != "faces"):
        names["dataset"] = own["dataset"] = "own"
    if "loss" not in named and "margin" in named:
        names["loss"] = own["loss"] = "own"
    check_loss(names["loss"], trainer, KNOWN)
    drop_replaced(saved, names, trainer)
    if path and not trust_code:
        refuse_code(path, {name: value for name, value in saved.items() if name not in own}, user, recipe or {})
    presets = (preset(kind, names[kind], trainer) for kind in PRESETS)
    settings = merge(TRAINERS[trainer].defaults, *presets, user, saved, own)
    complete(settings, root)
    check_settings(settings, named, typed, preset("dataset", names["dataset"], trainer), trainer, KNOWN)
    return settings


def drop_replaced(saved: Settings, names: Mapping[str, Any], trainer: str) -> None:
    """Takes out of saved settings what belongs to a preset or a margin that is not the one in ``names``."""
    for kind in PRESETS:
        if saved.get(kind, names[kind]) != names[kind]:
            presets = (preset(kind, name, trainer) for name in (saved[kind], names[kind]))
            for name in (*chain.from_iterable(presets), *OF_PRESET[kind]):
                saved.pop(name, None)
    if saved.get("margin", names["margin"]) != names["margin"]:
        for name in ("margins", "margin_options", "interclass_filtering_threshold"):
            saved.pop(name, None)


def merge(*layers: Mapping[str, Any]) -> Settings:
    """All settings, of which later layers win; a lr_func takes the place of an earlier warm-up, too."""
    settings = SETTINGS.defaults()
    for values in layers:
        if values.get("lr_func"):
            settings.update(warmup_epoch=-1, warmup_steps=0)
        settings.update(values)
    return settings


def preset(kind: str, name: str, trainer: str) -> Settings:
    """The settings of a preset for this trainer."""
    of_trainer = TRAINERS[trainer].dataset.get(name, {}) if kind == "dataset" else {}
    layers = (SETTINGS.read(f"preset {name}", values, trainer) for values in (PRESETS[kind].get(name, {}), of_trainer))
    return dict(chain.from_iterable(values.items() for values in layers))


def read_saved(path: str) -> Settings:
    """The content of a settings.json, without the max_update that its num_epoch came to; {} for no path."""
    saved = read_settings(path) if path else {}
    return {name: value for name, value in saved.items() if name != "max_update" or not saved.get("num_epoch")}


def complete(settings: Settings, root: str) -> None:
    """Replaces a user's lr_func by its values, relative paths by absolute ones, and a folder of ``rec`` by its file."""
    if callable(settings["lr_func"]):
        factors = tabulate_rates(settings["lr_func"], settings["num_epoch"])
        settings["lr_func"] = SETTINGS.settings["lr_func"].check(factors)
    for name, setting in SETTINGS.settings.items():
        if setting.path and settings[name] not in KEYWORDS and not (name == "rec" and is_name(settings[name])):
            settings[name] = absolute(settings[name], root)
    rec = settings["rec"]
    settings["rec"] = set_path(rec) if rec and not is_name(rec) else rec


def absolute(path: str, root: str) -> str:
    """The path, where a relative one starts at ``root`` and ``~`` is a home."""
    return os.path.normpath(os.path.join(root, os.path.expanduser(path)))
