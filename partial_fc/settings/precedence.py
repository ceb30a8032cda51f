"""Which value of a setting wins.

Later ones win: the declared defaults, the defaults of a trainer, the presets that ``dataset``, ``network`` and ``loss``
name, the user's config.py, a recipe or a saved settings.json, and the user's changes.
"""

import copy
import os
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from partial_fc.data.sources.forms import is_name, set_path
from partial_fc.training.schedules import tabulate_rates
from partial_fc.utils.config import Options, read_settings, split_options, to_option
from partial_fc.utils.imports import refuse_code

from .aliases import LR_FUNC, without_empty_schedule
from .checks import check_loss, check_settings
from .declarations import KNOWN, SETTINGS
from .presets import PRESETS, TRAINERS

Settings = dict[str, Any]
# What a saved preset stands for beside its settings.
OF_PRESET = {"dataset": ("rec",), "network": (), "loss": ("margin_options",)}
OF_OPTIONS = {setting.name for setting in SETTINGS.settings.values() if setting.options is not None}
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
    user, saved, own = (SETTINGS.read(source, without_empty_schedule(values), trainer) for source, values in sources)
    typed = SETTINGS.names_in({**user_config, **changes})
    named = typed | SETTINGS.names_in(sources[1][1])  # without what `read` adds of what a value replaces
    names = {**SETTINGS.defaults(), **user, **saved, **own}
    if "dataset" not in named and (names["rec"] or names["data_name"] or names["task"] != "faces"):
        names["dataset"] = own["dataset"] = "own"
    if "loss" not in named and "margin" in named:
        names["loss"] = own["loss"] = "own"
    check_loss(names["loss"], trainer, KNOWN)
    presets = [TRAINERS[trainer].defaults, *(preset(kind, names[kind], trainer) for kind in PRESETS)]
    if saved.keys() >= OF_OPTIONS:  # all settings of a run
        complete_options(saved, merge(*presets, user))
    drop_replaced(saved, names, trainer)
    if path and not trust_code:
        refuse_code(path, {name: value for name, value in saved.items() if name not in own}, user, recipe or {})
    settings = complete(merge(*presets, user, saved, own), root)
    check_settings(settings, named, typed, preset("dataset", names["dataset"], trainer), trainer, KNOWN)
    return settings


def complete_options(saved: Settings, before: Mapping[str, Any]) -> None:
    """Adds to the options of a whole configuration those that it has left at their defaults, but others have set."""
    for name in OF_OPTIONS:
        saved[name] = Options({**dict.fromkeys(before[name]), **saved[name]})


def drop_replaced(saved: Settings, names: Mapping[str, Any], trainer: str) -> None:
    """Takes out of saved settings what belongs to a preset that is not the one in ``names``."""
    for kind in PRESETS:
        if saved.get(kind, names[kind]) == names[kind]:
            continue
        replaced = [preset(kind, name, trainer) for name in (saved[kind], names[kind])]
        for name, value in chain.from_iterable(each.items() for each in replaced):
            if isinstance(value, Options):
                for option in value.keys() & saved.get(name, {}).keys():
                    del saved[name][option]
            elif saved.pop(name, None) is not None:
                drop_options(saved, name)
        for name in OF_PRESET[kind]:
            saved.pop(name, None)
    for name in OF_OPTIONS & saved.keys():
        if not saved[name]:  # which would clear those of earlier sources
            del saved[name]


def drop_options(settings: Settings, part: str, free: Collection[tuple[str, str]] = ()) -> None:
    """Removes the options of a part that another one replaces, but for those that any part has, and ``free`` ones."""
    for setting in SETTINGS.settings.values():
        if setting.part == part and not SETTINGS.settings[part].item and setting.name in settings:
            declared = {option.name for option in setting.options or ()}
            settings[setting.name] = Options(
                (name, text)
                for name, text in settings[setting.name].items()
                if name in declared or (setting.name, name) in free
            )


def merge(*layers: Mapping[str, Any]) -> Settings:
    """All settings, of which later layers win, with `Options`.

    Options are merged by name, and empty ones clear the earlier ones. A new part loses the options that a layer has set
    together with the former part, and factors of the rates take the place of an earlier warm-up, too.
    """
    settings = SETTINGS.defaults()
    settings.update({name: Options() for name in OF_OPTIONS})
    free: set[tuple[str, str]] = set()  # (setting, option) that came without a part
    for values in layers:
        if values.get("schedule") == "factors":
            settings.update(warmup_epoch=-1, warmup_steps=0)
        for name, value in values.items():
            if value != settings[name] and not isinstance(value, Options):
                drop_options(settings, name, free)
        for name, value in values.items():
            if isinstance(value, Options):
                given = {(name, option) for option in value}
                free = free - given if SETTINGS.settings[name].part in values else free | given
                value = Options({**settings[name], **value} if value else {})
            settings[name] = value
    return settings


def preset(kind: str, name: str, trainer: str) -> Settings:
    """The settings of a preset for this trainer."""
    of_trainer = TRAINERS[trainer].dataset.get(name, {}) if kind == "dataset" else {}
    first, second = (
        SETTINGS.read(f"preset {name}", values, trainer) for values in (PRESETS[kind].get(name, {}), of_trainer)
    )
    return {**first, **second}


def read_saved(path: str) -> Settings:
    """The content of a settings.json, without the max_update that its num_epoch came to; {} for no path."""
    saved = read_settings(path) if path else {}
    return {name: value for name, value in saved.items() if name != "max_update" or not saved.get("num_epoch")}


def todays_names(saved: Mapping[str, Any]) -> Settings:
    """The content of a settings.json of any version by today's names, with options as text; the unknown stays."""
    saved = without_empty_schedule(saved)
    known = {name: value for name, value in saved.items() if SETTINGS.get(name)}
    others = {name: value for name, value in saved.items() if name not in known}
    translated = SETTINGS.translate(known).items()
    return {**others, **{name: str(value) if isinstance(value, Options) else value for name, value in translated}}


def value_of(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting by an earlier name, such as a list of numbers for lr_steps; KeyError for no such name."""
    alias, declared = SETTINGS.aliases[name], SETTINGS.get(name)
    assert declared is not None, "an alias stands for something"
    if not alias.options:
        return settings[alias.setting]
    given = split_options(alias.setting, settings[alias.setting])
    if not given.keys() >= set(alias.options):
        return copy.copy(declared.default)
    text = ",".join(given[option] for option in alias.options)
    return declared.check(declared.parse(text))


def complete(settings: Settings, root: str) -> Settings:
    """Returns settings with absolute paths, the values of a lr_func, the file of ``rec``, and options as text."""
    settings, rates = dict(settings), settings["schedule_options"]
    if rates.get(settings["schedule"], "") is None:  # lr_steps=[] and the like
        settings["schedule"] = "constant"
    factors = rates.get("factors")
    if callable(factors):
        factors = to_option(LR_FUNC.check(tabulate_rates(factors, settings["num_epoch"])))
        settings["schedule_options"] = Options({**rates, "factors": factors})
    for name, setting in SETTINGS.settings.items():
        if setting.options is not None:
            given = settings[name]
            declared = [option.name for option in setting.options if option.name in given]  # first, in one order
            settings[name] = str(Options({option: given[option] for option in (*declared, *given)}))
        if setting.path and settings[name] not in KEYWORDS and not (name == "rec" and is_name(settings[name])):
            settings[name] = absolute(settings[name], root)
    rec = settings["rec"]
    settings["rec"] = set_path(rec) if rec and not is_name(rec) else rec
    return settings


def absolute(path: str, root: str) -> str:
    """The path, where a relative one starts at ``root`` and ``~`` is a home."""
    return os.path.normpath(os.path.join(root, os.path.expanduser(path)))
