"""Which value of a setting wins.

Later ones win: the declared defaults, the trainer's defaults, the presets that ``dataset``, ``network`` and ``loss``
name, the user's config.py, a recipe or a saved settings.json, and the user's changes.

Options of a setting are merged one by one: each has its own key until the end, see Schema.
"""

import copy
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from partial_fc.data.sources.forms import is_name, set_path
from partial_fc.distributed.errors import errors_of_head
from partial_fc.training.heads import Head
from partial_fc.training.schedules import tabulate_rates
from partial_fc.utils.config import read_settings, split_options, to_option
from partial_fc.utils.imports import refuse_code

from .aliases import LR_FUNC
from .checks import check_loss, check_settings, check_validation_sets
from .declarations import SETTINGS
from .heads import NAME, WEIGHT, read_heads
from .presets import PRESETS, TRAINERS

Settings = dict[str, Any]
OPTIONS_SETTINGS = {  # names of the settings that hold options
    setting.name for setting in SETTINGS.settings.values() if setting.options is not None
}
IN_EVERY_VERSION = OPTIONS_SETTINGS - {"objective_options"}  # which a settings.json of an earlier version lacks
# Part -> the setting with its options. Trackers are left out, because all of them share their options.
PARTS = {
    setting.part: setting
    for setting in SETTINGS.settings.values()
    if setting.part and not SETTINGS.settings[setting.part].item
}
KEYWORDS = ("", "auto", "same")  # values of path settings that are not paths


def resolve_settings(
    changes: Mapping[str, Any],
    trainer: str,
    user_config: Mapping[str, Any],
    config_file: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> tuple[Settings, list[Head]]:
    """Returns all settings of a training, and its heads, see heads_of. Relative paths start at the current folder.

    Args:
        changes: Settings by name that win over all others, such as the command line's.
        trainer: "mxnet" or "torch", see TRAINERS.
        user_config: Settings of config.py by name.
        config_file: Path of a settings.json, or None. Its values win over presets and config.py. If ``changes`` names
            another preset, no setting of either preset is read from the file.
        recipe: Settings by name in place of a ``config_file``, or None.
        trust_code: Whether a ``config_file`` may name code that nothing else names, see refuse_code.

    Raises:
        SettingsError: A name is unknown, or a value is not allowed.
    """
    root = os.getcwd()
    path = absolute(config_file, root) if config_file else ""
    file = read_settings(path) if path else {}
    if file.get("num_epoch"):
        file.pop("max_update", None)  # it follows from num_epoch
    document = {**(recipe or {}), **file}
    user, saved, changed = (
        SETTINGS.read(source, without_empty_schedule(values), trainer)
        for source, values in (("config.py", user_config), (path, document), ("", changes))
    )
    newly_set = SETTINGS.names_in({**user_config, **changes})
    named = newly_set | SETTINGS.names_in(document)  # without the defaults that `read` adds
    combined = {**SETTINGS.defaults(), **user, **saved, **changed}
    has_own_set = combined["rec"] or combined["data_name"] or combined["heads"] or combined["task"] != "faces"
    if "dataset" not in named and has_own_set:
        combined["dataset"] = changed["dataset"] = "own"
    if "loss" not in named and "margin" in named:
        combined["loss"] = changed["loss"] = "own"
    check_loss(combined["loss"], trainer)
    by_kind = {kind: preset(kind, combined[kind], trainer) for kind in PRESETS}
    if combined["dataset"] == "own" and "schedule_options" in named:
        by_kind["dataset"].pop("schedule")  # options such as lr_steps=[] or a warm-up alone leave the rates constant
    before = [TRAINERS[trainer].defaults, *by_kind.values(), user]
    # The settings.json of a run omits options at their defaults, but these defaults win over earlier sources, too.
    if SETTINGS.names_in(document) >= IN_EVERY_VERSION:
        saved = {**{key: None for key in merge(*before) if "." in key}, **saved}
    drop_replaced(saved, combined, trainer)
    if path and not trust_code:
        refuse_code(path, {name: value for name, value in saved.items() if name not in changed}, user, recipe or {})
    settings = complete(merge(*before, saved, changed), root)
    heads = heads_of(settings)
    for head in heads:
        if head.name and not trust_code:  # whoever names the file of the heads, a stranger may have written it
            refuse_code(settings["heads"], head.own, user, recipe or {}, changed)
        with errors_of_head(head.name, settings["heads"]):
            check_settings(head.settings, named.union(head.own), newly_set, by_kind["dataset"], trainer)
    check_validation_sets(heads[0].settings, newly_set)
    return settings, heads


def heads_of(settings: Any) -> list[Head]:
    """Returns the heads of a training, in order; without the setting ``heads``, one of all settings.

    The file overrides the training's settings, and so does the preset of a loss that it names. Heads after the first
    have different seeds and bank_folders. Relative paths in the file start at its folder.

    Raises:
        SettingsError: The file cannot be read, or a value is not allowed; names the file, the head and the key.
    """
    path, heads = settings["heads"], list[Head]()
    if not path:
        return [Head("", settings)]
    of_all = SETTINGS.translate(settings)
    for own in read_heads(path):
        name, weight = own.pop(NAME), own.pop(WEIGHT.name)
        with errors_of_head(name, path):
            values = SETTINGS.translate(own, "torch")
            if "margin" in values:
                values.setdefault("loss", "own")
            of_loss = preset("loss", values["loss"], "torch") if "loss" in values else {}
            of_head = type(settings)(complete(merge(of_all, of_loss, values), os.path.dirname(path)))
        own |= {key: of_head[key] for key in own if SETTINGS.settings[key].path}
        if heads:  # with the seed of the first, heads would draw the same images and negatives, and start the same
            digest = hashlib.sha256(f"{of_head['seed']} {name}".encode()).digest()
            of_head["seed"] = int.from_bytes(digest[:4], "big") >> 1
            of_head["bank_folder"] = of_head["bank_folder"] and os.path.join(of_head["bank_folder"], name)
        heads.append(Head(name, of_head, weight, own))
    return heads


def merge(*layers: Mapping[str, Any]) -> Settings:
    """Returns all settings; later layers win.

    Options given as "" clear the earlier ones. When the part changes, such as the optimizer, the options that a layer
    has set together with the former part are dropped. Factors of the rates also replace an earlier warm-up.
    """
    settings = {name: value for name, value in SETTINGS.defaults().items() if name not in OPTIONS_SETTINGS}
    set_with_part: set[str] = set()  # keys of options
    for values in layers:
        if values.get("schedule") == "factors":
            settings.update(warmup_epoch=-1, warmup_steps=0)
        for name, value in values.items():
            dropped: set[str] = set()
            if name in OPTIONS_SETTINGS:
                dropped = {key for key in settings if key.startswith(f"{name}.")}
            elif name in PARTS and value != settings[name]:
                dropped = {key for key in set_with_part if belongs_to_part(key, name)}
            settings = {key: current for key, current in settings.items() if key not in dropped}
        settings.update((name, value) for name, value in values.items() if name not in OPTIONS_SETTINGS)
        for key in values:
            if "." in key:
                with_part = SETTINGS.settings[key.partition(".")[0]].part in values
                (set_with_part.add if with_part else set_with_part.discard)(key)
    return settings


def belongs_to_part(key: str, part: str) -> bool:
    """Returns whether a key is an option that only some values of ``part`` take; the declared options fit all."""
    setting, _, option = key.partition(".")
    return setting == PARTS[part].name and option not in {each.name for each in PARTS[part].options or ()}


def drop_replaced(saved: Settings, combined: Mapping[str, Any], trainer: str) -> None:
    """Removes from saved settings what belongs to a preset other than the ones in ``combined``."""
    for kind in PRESETS:
        if saved.get(kind, combined[kind]) == combined[kind]:
            continue
        replaced = {**preset(kind, saved[kind], trainer), **preset(kind, combined[kind], trainer)}
        parts = PARTS.keys() & replaced.keys()
        for key in list(saved):
            is_part_option = any("." in key and belongs_to_part(key, part) for part in parts)
            if key in replaced or is_part_option or (kind, key) == ("dataset", "rec"):
                del saved[key]
    for name in OPTIONS_SETTINGS:
        saved.pop(name, None)  # "" would also clear the options of a new preset


def preset(kind: str, name: str, trainer: str) -> Settings:
    """Returns the settings of a preset for this trainer."""
    common, trainer_preset = (
        SETTINGS.read(f"preset {name}", presets.get(name, {}), trainer)
        for presets in (PRESETS[kind], TRAINERS[trainer].get(kind, {}))
    )
    if "schedule" in trainer_preset:
        common = {key: value for key, value in common.items() if not key.startswith("schedule_options.")}
    return {**common, **trainer_preset}


def without_empty_schedule(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns settings without an empty schedule, which in earlier versions meant the schedule of the lr_* names.

    A settings.json of these versions has all three names; without a schedule in any of them the rates are constant.
    """
    if not isinstance(values, Mapping) or values.get("schedule") != "":
        return values
    constant = all(values.get(name) == [] for name in ("lr_steps", "lr_epochs", "lr_func"))
    rest = {name: value for name, value in values.items() if name != "schedule"}
    return {**rest, "schedule": "constant"} if constant else rest


def todays_names(saved: Mapping[str, Any]) -> Settings:
    """Returns the content of any version's settings.json with today's names; unknown names stay."""
    saved = without_empty_schedule(saved)
    unknown = {name: value for name, value in saved.items() if SETTINGS.get(name) is None}
    known = {name: value for name, value in saved.items() if name not in unknown}
    return {**unknown, **SETTINGS.join_options(SETTINGS.translate(known))}


def value_of(settings: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a setting by an earlier name, such as the list of lr_steps. Other names raise KeyError."""
    alias, declared = SETTINGS.aliases[name], SETTINGS.get(name)
    assert declared is not None, "every alias stands for a declared setting"
    if not alias.options:
        return settings[alias.setting]
    options = split_options(alias.setting, settings[alias.setting])
    if not options.keys() >= set(alias.options):
        return copy.copy(declared.default)
    return declared.check(declared.parse(",".join(options[option] for option in alias.options)))


def complete(values: Mapping[str, Any], root: str) -> Settings:
    """Returns all settings: options as text, a function lr_func as its values, paths absolute, rec as a file."""
    values = dict(values)
    if values.get(f"schedule_options.{values['schedule']}", "") is None:  # lr_steps=[], for example
        values["schedule"] = "constant"
    factors = values.get("schedule_options.factors")
    if callable(factors):
        values["schedule_options.factors"] = to_option(LR_FUNC.check(tabulate_rates(factors, values["num_epoch"])))
    joined = SETTINGS.join_options(values)
    settings = {name: joined.get(name, setting.default) for name, setting in SETTINGS.settings.items()}
    for name, setting in SETTINGS.settings.items():
        value = settings[name]
        is_word = name == "rec" and is_name(value) or name == "sampling" and not value.endswith(".npy")
        if setting.path and value not in KEYWORDS and not is_word:
            settings[name] = absolute(value, root)
    rec = settings["rec"]
    settings["rec"] = set_path(rec) if rec and not is_name(rec) else rec
    return settings


def absolute(path: str, root: str) -> str:
    """Returns an absolute path: a relative one starts at ``root``, and ``~`` is a home."""
    return os.path.normpath(os.path.join(root, os.path.expanduser(path)))
