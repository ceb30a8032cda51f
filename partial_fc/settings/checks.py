"""Refusals of settings that are allowed one by one, but not together, or not by this trainer.

``settings`` holds all of them by name; `Known` is what declarations.py and presets.py declare beside them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from partial_fc.checkpoint.rank_files import ARCFACE_CHECKPOINT, is_of_a_rank
from partial_fc.data.sources.forms import is_record_set
from partial_fc.layer.margins import COMBINED, MARGINS
from partial_fc.layer.sampling import NOTHING_TO_CORRECT
from partial_fc.training.schedules import SCHEDULES, build_schedule
from partial_fc.utils.config import SettingsError, choose, parse_options
from partial_fc.utils.imports import check_object_name
from partial_fc.utils.options import BOUNDS, check_optimizer_options, check_options, options_of, other_options

Settings = Mapping[str, Any]
# What a set of one's own needs -> the settings of which one must be given.
OF_A_SET = {
    "num_classes": ("num_classes",),
    "num_epoch or max_update": ("num_epoch", "max_update"),
    "schedule (such as lr_epochs=[8,14])": ("schedule", "schedule_options"),
}


@dataclass(frozen=True)
class Known:
    """What is declared, by name."""

    defaults: Settings
    losses: Mapping[str, Settings]  # the presets
    networks: Mapping[str, Collection[str]]  # by trainer
    objects: Mapping[str, Collection[str]]  # setting -> names that it takes beside package.module:name


def check_settings(
    settings: Settings,
    given: Collection[str],
    typed: Collection[str],
    of_dataset: Settings,
    trainer: str,
    known: Known,
) -> None:
    """Refuses values that are allowed one by one, but not together.

    A training that ends before its warm-up does is a short try, and allowed.

    Args:
        settings: All of them.
        given: The names of those that the user has set.
        typed: Of these, those that no saved configuration has set.
        of_dataset: What the preset of the data set has set.
        trainer: A key of ``known.networks``.
        known: What there is.

    Raises:
        SettingsError: One of them is to be changed, which it says.
    """
    _check_rates(settings)
    ratios = settings["sample_ratio"]
    if settings["sampling_correction"] and 0 in (ratios if isinstance(ratios, list) else [ratios]):
        raise SettingsError(NOTHING_TO_CORRECT)
    try:
        _check_objects(settings, typed, trainer, known)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    _check_images(settings)
    _check_types(settings)
    _check_start(settings)
    if not (settings["models_root"] or settings["output"]):
        raise SettingsError("models_root is empty: set it, or output, to the folder that the training writes to")
    _check_set(settings, given, of_dataset, known.defaults)
    _check_network(settings["network"], trainer, known.networks)
    if trainer == "mxnet":  # where all networks have such a norm
        check_batch_norms(settings)
    _check_resume(settings["resume"], trainer)


def check_batch_norms(settings: Settings) -> None:
    """Refuses a batch of one item for a network with a batch norm of embeddings, which would become 0."""
    if settings["batch_size"] < 2:
        raise SettingsError(
            f"batch_size is 1, but the batch norms of {settings['network']} need 2 items or more of each rank: set "
            "batch_size=2"
        )


def check_loss(name: str, trainer: str, known: Known) -> None:
    """Refuses a loss that the trainer does not have."""
    if trainer == "mxnet" and known.losses[name]["margin"] != "combined":
        others = ", ".join(other for other, preset in known.losses.items() if preset["margin"] == "combined")
        raise SettingsError(
            f"loss is {name!r}, which only the torch trainer has: train with bash pytorch/run.sh, or choose {others}"
        )


def _check_rates(settings: Settings) -> None:
    """Refuses a warm-up that does not fit the schedule, and too few factors."""
    warm_up = [name for name in ("warmup_epoch", "warmup_steps") if settings[name] > 0]
    growth = options_of(settings, "schedule_options").warmup
    if growth == "quadratic" and "warmup_epoch" not in warm_up:
        raise SettingsError(
            "schedule_options has warmup=quadratic, which is a growth by epoch: set warmup_epoch, or remove it"
        )
    if settings["schedule"] != "factors":
        return
    if warm_up:
        raise SettingsError(
            f"schedule is 'factors' (lr_func), the whole course of the rates, but {warm_up[0]} is set: remove one of "
            "them"
        )
    factors, epochs = other_options(settings, "schedule_options").get("factors"), settings["num_epoch"]
    if isinstance(factors, (list, tuple)) and len(factors) < epochs:
        raise SettingsError(
            f"schedule_options has factors (lr_func) for {len(factors)} epochs, but num_epoch is {epochs}: add some"
        )


def _check_objects(settings: Settings, typed: Collection[str], trainer: str, known: Known) -> None:
    """Refuses names of objects, and options of them, that are not there or do not fit; with ValueError."""
    _check_margin(settings, known)
    _check_schedule(settings)
    for setting, names in known.objects.items():
        value = settings[setting]
        for name in value if isinstance(value, list) else [value]:
            _check_named(setting, name, names)
    momentum, optimizers = settings["momentum"], {settings["optimizer"], settings["center_optimizer"]}
    if "momentum" in typed and momentum != known.defaults["momentum"] and "sgd" not in optimizers:
        raise SettingsError(f"momentum is {momentum}, which sgd alone takes: remove it, or set optimizer_options")
    options = other_options(settings, "optimizer_options")
    if options and trainer == "mxnet":
        raise SettingsError(
            f"optimizer_options has {', '.join(options)}, which only the torch trainer takes: remove it, or train with "
            "bash pytorch/run.sh"
        )
    check_optimizer_options(settings["optimizer"], options)


def _check_margin(settings: Settings, known: Known) -> None:
    """Refuses a margin that is not the one of the loss, has another form, or does not take what is set."""
    name, margin = settings["loss"], settings["margin"]
    of_loss = known.losses[name]["margin"]
    if name != "own" and margin != of_loss:
        raise SettingsError(f"margin is {margin!r}, but loss {name} has {of_loss!r}: set loss=own")
    if margin not in MARGINS:
        check_object_name(margin, "margin")
        return
    options = parse_options("margin_options", settings["margin_options"])
    known_options = COMBINED if margin == "combined" else BOUNDS[margin]
    for option in options.keys() - known_options.keys():
        raise SettingsError(
            f"margin_options has {option}, but the margin {margin!r} takes {', '.join(known_options)}: remove it"
        )
    check_options(margin, options)


def _check_schedule(settings: Settings) -> None:
    """Refuses a schedule that is not there, or does not take its options."""
    name = settings["schedule"]
    _check_named("schedule", name, SCHEDULES)
    if name in ("steps", "epochs", "factors") and name not in other_options(settings, "schedule_options"):
        raise SettingsError(f"schedule is {name!r}, but schedule_options has no {name}: add {name}=[...]")
    if ":" not in name:
        build_schedule(settings, updates=1, of_epoch=1)


def _check_named(setting: str, name: str, known: Collection[str]) -> None:
    """Refuses a name that is neither among the known ones nor of the form package.module:name."""
    if ":" in name:
        check_object_name(name, setting)
    else:
        choose(setting, name, known)


def _check_images(settings: Settings) -> None:
    rec = settings["rec"]
    if rec and is_record_set(rec) and not rec.endswith(".rec"):
        raise SettingsError(
            f"rec is {rec}, but must be the path of a .rec file, or of a folder of images, of .tar or .parquet files, "
            "or hf:NAME or package.module:name"
        )


def _check_types(settings: Settings) -> None:
    if settings["fp16"] and settings["bf16"]:
        raise SettingsError("fp16 and bf16 are both set: choose float16 or bfloat16")
    if settings["gradient_dtype"] == "float16" and not settings["fp16"]:
        raise SettingsError(
            "gradient_dtype is float16, whose range needs the loss scale of fp16: set fp16 too, or bfloat16"
        )


def _check_start(settings: Settings) -> None:
    given = settings["pretrained"] or settings["resume"] not in ("", "auto")
    if settings["class_map"] and not given:
        raise SettingsError("class_map maps the classes of a checkpoint: set resume or pretrained to its path, too")
    if settings["new_centers"] == "mean":
        if not given:
            raise SettingsError("new_centers=mean takes the embeddings of a pretrained backbone: set pretrained, too")
        if settings["debug"]:
            raise SettingsError("new_centers=mean embeds the images of a set, but debug=True has none: remove one")


def _check_set(settings: Settings, given: Collection[str], of_dataset: Settings, defaults: Settings) -> None:
    """Refuses a task without items, settings of images for another task, and one's own set of which too little is."""
    path = settings["rec"] or settings["data_name"]
    if settings["task"] == "faces" and not (settings["debug"] or path):
        raise SettingsError(f"dataset {settings['dataset']} has no images: set rec, or debug=True for dummy images")
    targets = settings["val_targets"]
    if settings["task"] == "items" and targets not in (defaults["val_targets"], of_dataset.get("val_targets")):
        raise SettingsError(f"val_targets is {targets}, but task=items does not take it: remove it")
    missing = [words for words, names in OF_A_SET.items() if not set(names).intersection(given)]
    if settings["dataset"] == "own" and missing:
        where, named = path or "dataset own", ", ".join(missing)
        raise SettingsError(f"{where} is a set of your own: set {named} too, or dataset to one whose preset has them")


def _check_network(name: str, trainer: str, networks: Mapping[str, Collection[str]]) -> None:
    """Refuses a network that the trainer does not have."""
    known, (other,) = networks[trainer], networks.keys() - {trainer}
    if name not in known and (name in networks[other] or (":" in name and trainer == "mxnet")):
        raise SettingsError(
            f"network is {name!r}, which only the {other} trainer has: choose one of {', '.join(known)}"
        )
    if trainer == "mxnet":
        choose("network", name, known)


def _check_resume(path: str, trainer: str) -> None:
    """Refuses a file of weights, and a checkpoint that the trainer does not read."""
    if is_of_a_rank(path, ARCFACE_CHECKPOINT):
        if trainer != "torch":
            raise SettingsError(f"resume is {path}, which only the torch trainer reads: train with bash pytorch/run.sh")
    elif path.endswith((".pt", ".pth", ".params")):
        raise SettingsError(
            f"resume is {path}, which holds weights, not a checkpoint of this trainer: start with --pretrained and "
            "that path, and with --class-map same if its class centers are to be taken too"
        )
