"""Compares a finished training of a recipe with the recipe's published results.

Prints the settings in which the training differs from the recipe, and each published figure beside the training's:
accuracies of validation sets from the folder of the training, IJB-C from the JSON file that `partial-fc ijb` writes,
and MFR-ALL as reported by the challenge's server. The exit code is 1 if a figure is missing, or lower than published by
more than its tolerance.
"""

import argparse
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from partial_fc.settings.precedence import OPTIONS_SETTINGS, todays_names
from partial_fc.training.recipes.config_file import our_recipe, read_recipe
from partial_fc.training.recipes.translate import translate
from partial_fc.utils.config import Setting, parse_options, read_settings
from partial_fc.utils.json_object import read_object
from partial_fc.utils.options import number
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import say
from partial_fc.utils.user_code import described

EXAMPLE = "work_dirs/ms1mv3_r50 --ijbc result/IJBC.json --mfr-all 79.0"
LARGEST = 1 << 20  # bytes of a file of results
# In percent. The spread between trainings of one recipe is not published. For r50 and for r100 on WebFace42M with
# 20 % of the centers, results published for different numbers of GPUs differ by up to 0.42, 0.15 and 0.32 (in order).
TOLERANCES = {"MFR-ALL": 0.5, "IJB-C 1e-4": 0.2, "IJB-C 1e-5": 0.4}
ACCURACY_TOLERANCE = 1.0  # percent: twice the standard error of 3,000 pairs at 90 %
# Settings that do not change the result: where a training runs, how fast, and what it prints.
IRRELEVANT = {
    *("batch_size", "gradient_acc", "rec", "output", "fp16", "seed", "log_every", "verify_every", "decode_processes"),
    *("decode_threads", "resume", "val_targets", "trackers", "tracker_options"),
}
# Settings of every training of arcface_torch, which recipes therefore omit.
USUAL = {
    **{"pretrained": "", "class_map": "", "backbone_lr": 0.0, "memory_bank_lr": 0.0, "max_grad_norm": 5.0},
    **{"dropout": 0.0, "rand_mirror": True, "cutout": 0, "color_jittering": 0.0, "jpeg_compression": 0},
    **{"min_images_per_class": 0, "sampling_correction": False, "ema_decay": 0.0, "part_rates": [], "decay_on": "all"},
    **{"new_centers": "random", "average_checkpoints": 0},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("run", metavar="RUN", help="output folder of the training")
    parser.add_argument(
        "--recipe", metavar="NAME", help="recipe of the training, or a file (default: the folder's name)"
    )
    parser.add_argument("--ijbc", metavar="FILE", help="IJBC.json of partial-fc ijb (default: RUN/IJBC.json)")
    parser.add_argument("--mfr-all", type=float, metavar="PERCENT", help="result of MFR-ALL")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    # Recipes are code: by default a name is looked up in our table, and no file is run.
    recipe = read_recipe(args.recipe) if args.recipe else our_recipe(os.path.basename(os.path.abspath(args.run)))
    published = recipe.config.get("published")
    if not published:
        raise ValueError(f"{recipe.name} has no published results: name another recipe with --recipe")
    ranks, accuracies = read_summary(os.path.join(args.run, "summary.json"), published)
    trained = read_settings(path := os.path.join(args.run, "settings.json"))
    if "batch_size" not in trained:
        raise ValueError(f"{path} has no settings of a training: batch_size is missing")
    expected = translate(recipe, ranks).settings
    recipe_settings = USUAL | expected | global_batch(expected, recipe.config.get("gpus", 1))
    for line in differences(recipe_settings, trained | global_batch(trained, ranks)):
        say(line)
    measured = accuracies | read_ijbc(args.ijbc or os.path.join(args.run, "IJBC.json"), bool(args.ijbc))
    if args.mfr_all is not None:
        measured["MFR-ALL"] = args.mfr_all
    rows = [verdict(figure, value, measured.get(figure)) for figure, value in published.items()]
    print("\n".join(format_table([("figure", "published", "tolerance", "measured", ""), *rows])))
    return 0 if all(row[-1] == "confirmed" for row in rows) else 1


def differences(recipe: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting in which the training differs from the recipe.

    A setting that an older training lacks has its value in USUAL.
    """
    values, expected = {**dict(flat(USUAL)), **dict(flat(trained))}, dict(flat(recipe))
    return [
        f"the training has {name}={values.get(name)!r}, the recipe {expected[name]!r}"
        for name in expected
        if name not in IRRELEVANT and values.get(name) != expected[name]
    ]


def flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the settings by today's names, and each option as a setting of its own."""
    for name, value in todays_names(settings).items():
        if name in OPTIONS_SETTINGS:
            yield from ((f"{name}={option}", each) for option, each in parse_options(name, value).items())
        else:
            yield name, list(value) if isinstance(value, tuple) else value


def global_batch(settings: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Returns the number of images of an update, as a setting."""
    sizes = (count(name, settings.get(name, 1)) for name in ("batch_size", "gradient_acc"))
    return {"global batch": math.prod((ranks, *sizes))}


def count(name: str, value: Any) -> int:
    """Returns a count from a file that somebody else may have written. Raises ValueError for anything else."""
    checked: int = Setting(name, 1, "", at_least=1).check(value)
    return checked


def read_summary(path: str, names: Iterable[str]) -> tuple[int, dict[str, float]]:
    """Returns the number of ranks of a training, and its accuracies in percent on the sets ``names``, if it has them.

    Raises OSError or ValueError that names the file.
    """
    try:
        summary = read_object(path, LARGEST)
        sets = dict(summary["verification"])
        return count("ranks", summary["ranks"]), {
            name: 100 * number(name, sets[name]) for name in names if name in sets
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a summary of a training: {described(error)}") from None


def read_ijbc(path: str, required: bool) -> dict[str, float]:
    """Returns the true accept rates of IJB-C in percent, by figure; {} if a file that is not required is missing."""
    if not (required or os.path.exists(path)):
        return {}
    try:
        rates = read_object(path, LARGEST)["tar_at_nearest_far"]  # as arcface_torch reads its curve
        return {f"IJB-C {far}": 100 * number(far, rates[far]) for far in ("1e-4", "1e-5")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no results of IJB-C: {described(error)}") from None


def verdict(figure: str, expected: float | tuple[float, float], measured: float | None) -> tuple[str, ...]:
    """Returns a row of the table; ``expected`` is the published value, or (value, tolerance)."""
    usual = TOLERANCES.get(figure, ACCURACY_TOLERANCE)
    published, tolerance = expected if isinstance(expected, tuple) else (expected, usual)
    known = (figure, f"{published:.2f}", f"{tolerance:.2f}")
    if measured is None:
        return (*known, "-", "not measured")
    return (*known, f"{measured:.2f}", "confirmed" if measured >= published - tolerance else "lower")
