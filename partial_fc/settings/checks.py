"""Refusals of settings that are allowed one by one, but not together, or not by this trainer."""

import os
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from partial_fc.checkpoint.rank_files import ARCFACE_CHECKPOINT, is_of_a_rank
from partial_fc.data.sources.forms import is_dataset, is_name, is_record_set
from partial_fc.layer.margins import COMBINED, MARGINS
from partial_fc.layer.sampling import NOTHING_TO_CORRECT
from partial_fc.training.class_weights import SAMPLINGS
from partial_fc.training.inputs import record_path, validation_sets
from partial_fc.training.schedule import lists_by_epoch
from partial_fc.training.schedules import SCHEDULES, build_schedule, check_by_epoch, is_ramp
from partial_fc.utils.config import SettingsError, choose
from partial_fc.utils.imports import OF_TIMM, check_object_name
from partial_fc.utils.options import BOUNDS, check_optimizer_options, check_options, options_of, other_options

from .declarations import OBJECTS, SETTINGS, TASKS
from .presets import NETWORKS, loss

Settings = Mapping[str, Any]
BY_NUMBER = ("steps", "epochs", "factors")  # schedules whose options are the numbers of updates or epochs


def check_settings(
    settings: Settings, named: Collection[str], newly_set: Collection[str], dataset_preset: Settings, trainer: str
) -> None:
    """Refuses values that are allowed one by one, but not together.

    A training that ends in its warm-up is allowed, as a short trial.

    Args:
        settings: All settings by name.
        named: Names of the settings that the user has set, in a saved configuration or newly.
        newly_set: Those names that the user has set in config.py or on the command line.
        dataset_preset: Settings that the data set's preset has set.
        trainer: A key of NETWORKS.

    Raises:
        SettingsError: Says which setting to change.
    """
    try:
        _check_schedule(settings)
        _check_margin(settings, trainer)
        _check_objects(settings, newly_set, trainer)
    except ValueError as error:  # also raised by a user's object
        raise SettingsError(str(error)) from None
    _check_data(settings, named, dataset_preset)
    _check_start(settings, trainer)
    _check_teacher(settings)
    ratios = settings["sample_ratio"]
    if settings["sampling_correction"] and 0 in (ratios if isinstance(ratios, list) else [ratios]):
        raise SettingsError(NOTHING_TO_CORRECT)
    if not settings["sampling"].endswith(".npy"):
        choose("sampling", settings["sampling"], SAMPLINGS, "a .npy file of weights")
    if settings["fp16"] and settings["bf16"]:
        raise SettingsError("fp16 and bf16 are both set: choose float16 or bfloat16")
    if settings["ema_decay"] and settings["average_checkpoints"]:
        raise SettingsError("ema_decay and average_checkpoints are both set: choose one average of the weights")
    if settings["gradient_dtype"] == "float16" and not settings["fp16"]:
        raise SettingsError(
            "gradient_dtype is float16, whose range needs the loss scale of fp16: set fp16 too, or bfloat16"
        )
    if not (settings["models_root"] or settings["output"]):
        raise SettingsError("models_root is empty: set it, or output, to the folder that the training writes to")
    network, known, (other,) = settings["network"], NETWORKS[trainer], NETWORKS.keys() - {trainer}
    if network not in known and (network in NETWORKS[other] or (":" in network and trainer == "mxnet")):
        raise SettingsError(
            f"network is {network!r}, which only the {other} trainer has: choose one of {', '.join(known)}"
        )
    if trainer == "mxnet":
        choose("network", network, known)
        check_batch_norms(settings)  # all networks of MXNet have such a norm


def check_batch_norms(settings: Settings) -> None:
    """Refuses a batch of one item if a batch norm of the embedding would then give 0."""
    if settings["batch_size"] < 2:
        raise SettingsError(
            f"batch_size is 1, but the batch norms of {settings['network']} need at least 2 items per rank: set "
            "batch_size=2"
        )


def check_loss(name: str, trainer: str) -> None:
    """Refuses a loss that the trainer does not have."""
    if trainer == "mxnet" and loss[name]["margin"] != "combined":
        others = ", ".join(other for other, preset in loss.items() if preset["margin"] == "combined")
        raise SettingsError(
            f"loss is {name!r}, which only the torch trainer has: train with bash pytorch/run.sh, or choose {others}"
        )


def _check_schedule(settings: Settings) -> None:
    """Refuses a schedule that does not exist or does not take its options, and a warm-up that does not fit it."""
    name, warm_up = settings["schedule"], [key for key in ("warmup_epoch", "warmup_steps") if settings[key] > 0]
    if options_of(settings, "schedule_options").warmup == "quadratic" and "warmup_epoch" not in warm_up:
        raise SettingsError(
            "schedule_options has warmup=quadratic, which grows by epoch: set warmup_epoch, or remove it"
        )
    _check_named("schedule", name, SCHEDULES)
    if ":" in name:
        return
    options = other_options(settings, "schedule_options")
    if name in BY_NUMBER and name not in options:
        raise SettingsError(f"schedule is {name!r}, but schedule_options has no {name}: add {name}=[...]")
    if name == "factors":
        factors, epochs = options["factors"], settings["num_epoch"]
        if warm_up:
            raise SettingsError(
                f"schedule is 'factors' (lr_func), which determines all rates, but {warm_up[0]} is set: remove one of "
                "them"
            )
        if isinstance(factors, (list, tuple)) and len(factors) < epochs:
            raise SettingsError(
                f"schedule_options has factors (lr_func) for {len(factors)} epochs, but num_epoch is {epochs}: add some"
            )
    build_schedule(settings, updates=1, of_epoch=1)


def _check_margin(settings: Settings, trainer: str) -> None:
    """Refuses a margin that does not exist, is not the loss's, or does not take its options."""
    name, margin = settings["loss"], settings["margin"]
    if name != "own" and margin != loss[name]["margin"]:
        raise SettingsError(f"margin is {margin!r}, but loss {name} has {loss[name]['margin']!r}: set loss=own")
    lists = lists_by_epoch(settings)
    if lists and trainer == "mxnet":
        raise SettingsError(
            f"margin_options has a list for {', '.join(lists)}, which only the torch trainer takes: set a number, or "
            "train with bash pytorch/run.sh"
        )
    if options_of(settings, "margin_options").ramp != "linear" and not any(map(is_ramp, lists.values())):
        raise SettingsError("margin_options has ramp, but no ramp such as m2=[[1,0.0],[5,0.3]]: add one, or remove it")
    by_epoch = {option: tuple(check_by_epoch(option, values).values()) for option, values in lists.items()}
    if margin not in MARGINS:
        check_object_name(margin, "margin")
        return
    options = {**other_options(settings, "margin_options"), **by_epoch}
    known = COMBINED if margin == "combined" else BOUNDS[margin]
    for option in options.keys() - known.keys():
        raise SettingsError(
            f"margin_options has {option}, but the margin {margin!r} takes {', '.join(known)}: remove it"
        )
    check_options(margin, options)


def _check_objects(settings: Settings, newly_set: Collection[str], trainer: str) -> None:
    """Refuses unknown names of objects, and options and a momentum that the optimizers do not take."""
    for setting, names in OBJECTS.items():
        value = settings[setting]
        for name in value if isinstance(value, list) else [value]:
            of_timm = OF_TIMM if (setting, trainer) == ("network", "torch") else ""
            _check_named(setting, name, names, of_timm)
    momentum, optimizers = settings["momentum"], {settings["optimizer"], settings["center_optimizer"]}
    default = SETTINGS.settings["momentum"].default
    if "momentum" in newly_set and momentum != default and "sgd" not in optimizers:
        raise SettingsError(f"momentum is {momentum}, which only sgd takes: remove it, or set optimizer_options")
    options = other_options(settings, "optimizer_options")
    if options and trainer == "mxnet":
        raise SettingsError(
            f"optimizer_options has {', '.join(options)}, which only the torch trainer takes: remove it, or train with "
            "bash pytorch/run.sh"
        )
    check_optimizer_options(settings["optimizer"], options)
    check_options(settings["objective"], other_options(settings, "objective_options"))


def _check_named(setting: str, name: str, known: Collection[str], others: str = "") -> None:
    """Refuses a name that is neither known nor of the form package.module:name."""
    if ":" in name:
        check_object_name(name, setting)
    else:
        choose(setting, name, known, others)


def _check_data(settings: Settings, named: Collection[str], dataset_preset: Settings) -> None:
    """Refuses a missing training set, settings that it does not take, and those that do not follow from it."""
    rec, path = settings["rec"], settings["rec"] or settings["data_name"]
    if rec and is_record_set(rec) and not rec.endswith(".rec"):
        raise SettingsError(
            f"rec is {rec}, but must be the path of a .rec file, or of a folder of images, of .tar or .parquet files, "
            "or hf:NAME or package.module:name"
        )
    if settings["task"] == "faces" and not (settings["debug"] or path):
        raise SettingsError(f"dataset {settings['dataset']} has no images: set rec, or debug=True for dummy images")
    targets = settings["val_targets"]
    if settings["task"] == "items" and targets != dataset_preset.get("val_targets"):
        for name in targets:
            if not is_dataset(name):
                raise SettingsError(f"val_targets has {name}, but with task=items it must be package.module:name")
    if not settings["num_classes"] and (settings["debug"] or settings["labels"] or settings["task"] not in TASKS):
        raise SettingsError("num_classes is not set, and follows only from the labels of a face set or Dataset: set it")
    schedule = settings["schedule"]
    if settings["dataset"] == "own" and schedule in BY_NUMBER and not {"num_epoch", "max_update"}.intersection(named):
        raise SettingsError(f"{path} has no length that its schedule {schedule!r} fits: set num_epoch or max_update")


def check_validation_sets(settings: Settings, newly_set: Collection[str]) -> None:
    """Refuses a validation set that the user has named, and that is missing beside the training set.

    A host without the training set may only start the training; the demo's files may not be drawn yet.
    """
    if "val_targets" not in newly_set or settings["task"] != "faces":
        return
    plain = SimpleNamespace(**settings)
    rec = record_path(plain)
    for name, path in validation_sets(plain).items() if is_name(rec) or os.path.exists(rec) else ():
        if not os.path.isfile(path):
            raise SettingsError(f"val_targets has {name}, but there is no {path}: write it with partial-fc sets bin")


def _check_start(settings: Settings, trainer: str) -> None:
    """Refuses a start without its weights or images, or from files that the trainer does not read."""
    resume = settings["resume"]
    source_is_given = settings["pretrained"] or resume not in ("", "auto")
    if settings["class_map"] and not source_is_given:
        raise SettingsError("class_map maps the classes of a checkpoint: set resume or pretrained to its path, too")
    if settings["new_centers"] == "mean":
        if not source_is_given:
            raise SettingsError("new_centers=mean takes the embeddings of a pretrained backbone: set pretrained, too")
        if settings["debug"]:
            raise SettingsError("new_centers=mean embeds the images of a set, but debug=True has none: remove one")
    if is_of_a_rank(resume, ARCFACE_CHECKPOINT):
        if trainer != "torch":
            raise SettingsError(
                f"resume is {resume}, which only the torch trainer reads: train with bash pytorch/run.sh"
            )
    elif resume.endswith((".pt", ".pth", ".params")):
        raise SettingsError(
            f"resume is {resume}, which holds weights, not a checkpoint of this trainer: set --pretrained to this path "
            "instead, and --class-map same to also load the class centers"
        )


def _check_teacher(settings: Settings) -> None:
    """Refuses settings of a teacher that is missing, and what a training with a teacher does not support."""
    if not settings["teacher"]:
        for name in ("teacher_weight", "softmax_weight", "teacher_centers"):
            if settings[name] != SETTINGS.settings[name].default:
                raise SettingsError(f"{name} is {settings[name]}, but there is no teacher: set teacher, or remove it")
    elif settings["heads"]:
        raise SettingsError("teacher and heads are both set, but a teacher needs a training of one head: remove one")
    if settings["teacher_centers"] == "none":
        return
    for name, none in (("class_map", ""), ("new_centers", "random")):
        if settings[name] != none:
            raise SettingsError(
                f"teacher_centers is {settings['teacher_centers']!r}, but {name} also sets class centers: remove one"
            )
