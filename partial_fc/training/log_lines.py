"""Log lines before and after the updates of a training, on rank 0."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from partial_fc.checkpoint import Manifest
from partial_fc.utils.config import SettingsError
from partial_fc.utils.text import plural

from .heads import Head
from .next_commands import next_commands
from .results import TrainingResult
from .run_folder import data_name
from .verifying import describe_baselines

TodaysNames = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # settings of any version -> with today's names

_SETTING_PREFIX = "setting "  # prefix of settings among the facts of a job
_SHOWN = ("batch_size", "sample_ratio", "embedding_size", "num_classes", "max_update")
# Settings that differ in a resumed training: how it starts, and the path of the heads, which are facts of their own.
_START_SETTINGS = {_SETTING_PREFIX + name for name in ("resume", "pretrained", "class_map", "new_centers", "heads")}

_FILES = {
    "report for any browser": "report.html",
    "backbone for ONNX runtimes": "backbone.onnx",
    "checkpoints for --resume auto": "checkpoints",
    "curves of loss and accuracy": "curves.png",
    "figures of this training": "summary.json",
    "its curves, for partial-fc report compare": "curves.json",
    "settings to run it again: --config": "settings.json",
    "this log": "training.log",
}


def log_start(settings: Mapping[str, Any], ranks: int, device: object, rates: str) -> None:
    """Logs the model, the data, the device and the learning rates, see describe_rates."""
    logging.info(
        "%s on %s with %s, %s on %s, %s",
        settings["network"],
        data_name(settings),
        settings["loss"],
        plural(ranks, "rank"),
        device,
        ", ".join(f"{name} {settings[name]}" for name in _SHOWN),
    )
    logging.info("%s", rates)
    if settings["debug"]:
        logging.info("debug mode: training on dummy data, so the speed below excludes I/O")


def log_heads(heads: Sequence[Head]) -> None:
    """Logs what each head trains on; nothing for a training without ``heads``."""
    for head in heads:
        if head.name:
            names = ("loss", "num_classes", "batch_size", "sample_ratio")
            shown = ", ".join(f"{name} {head.settings[name]}" for name in names)
            logging.info("head %s: weight %g, %s, %s", head.name, head.weight, head.settings["rec"] or "dummies", shown)


def log_resume(path: str, manifest: Manifest, facts: Mapping[str, Any], todays_names: TodaysNames = dict) -> None:
    """Logs the checkpoint that a training resumes from, and `changes_since`."""
    logging.info("resumes from update %d, saved by %s in %s", manifest.num_update, plural(manifest.ranks, "rank"), path)
    for name, (before, value) in changes_since(manifest, facts, todays_names).items():
        logging.info("  %s was %s, now it is %s", name, before, value)


def changes_since(
    manifest: Manifest, facts: Mapping[str, Any], todays_names: TodaysNames = dict
) -> dict[str, tuple[Any, Any]]:
    """Returns the settings, versions and digests that differ from the checkpoint's: name -> (before, now).

    ``facts`` are the facts of this training. The checkpoint's are in the manifest's ``origin``, with the setting names
    of its version; invalid settings are compared unchanged.
    """
    saved = {
        name[len(_SETTING_PREFIX) :]: value
        for name, value in manifest.origin.items()
        if name.startswith(_SETTING_PREFIX)
    }
    with suppress(SettingsError):
        saved = dict(todays_names(saved))
    origin = {**manifest.origin, **{_SETTING_PREFIX + name: value for name, value in saved.items()}}
    pairs = {name: (origin.get(name, value), value) for name, value in facts.items()}
    return {
        name: (before, value)
        for name, (before, value) in pairs.items()
        if json.dumps(value) != json.dumps(before) and name not in _START_SETTINGS
    }


def warn_missing(paths: Sequence[str]) -> None:
    """Warns of each validation set that does not exist."""
    for path in paths:
        logging.warning("validation set not found, not verified: %s", path)


def warn_empty_classes(classes_in_set: int | None, num_classes: int) -> None:
    """Warns if the set has fewer classes than the training; ``classes_in_set`` is None if its classes are not known."""
    if classes_in_set is not None and classes_in_set < num_classes:
        logging.warning(
            "num_classes is %d, but the set has %d: %s without items; set num_classes=%d unless this is intended",
            num_classes,
            classes_in_set,
            plural(num_classes - classes_in_set, "class", "classes"),
            classes_in_set,
        )


def log_summary(result: TrainingResult, framework_files: Mapping[str, str], script: str) -> None:
    """Logs the last lines: accuracies, problems, files and `next_commands`."""
    if result.skipped:
        logging.warning("bad samples skipped on all ranks: %d", result.skipped)
    for name, set_result in result.sets.items():
        figure = set_result.evaluation.figures[0]
        logging.info("[%s] final %s %.5f, best %.5f", name, figure, set_result.value, set_result.best_value)
        for problem in set_result.problems:
            logging.warning("[%s] %s", name, problem)
    if result.problems:
        logging.warning("%s", result.suggestion)
    if result.baselines:
        logging.info("without training: %s", describe_baselines(result.baselines))
    logging.info("%d updates in %.1f s, all written to %s", result.updates, result.seconds, result.folder)
    for content, names in {**_FILES, **framework_files}.items():
        logging.info("  %-37s %s", names, content)
    for number, command in enumerate(next_commands(result, script)):
        logging.info("%s %s", "     " if number else "next:", command)
