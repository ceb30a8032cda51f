"""Write the model card of a training: what a user must know before using the model.

Writes NAME.md and NAME.html: data and licence as given, settings, accuracy and TAR with 95 % intervals (Wilson), error
rates of each set and of groups at one shared threshold, errors by the share of images rejected because of a small
embedding norm, and what was not tested. The threshold is the highest one with a false accept rate of at most --far on
the first set; a false accept is a pair of different people or classes judged the same, a false reject the reverse.

By default the sets are the training's validation sets that exist. For a task of your own, the card shows the last
figures of the training's evaluations. --groups is a CSV file with a heading and a line for each pair of the first set,
in order; its columns name groups (sex, age, camera, ...), and a column `same` of 0 and 1 is checked against the set.
Groups with fewer than 100 pairs of a kind are marked as small.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from partial_fc.utils.cli import add_force, add_json, number_above_0, whole_number
from partial_fc.utils.text import say, say_json

if TYPE_CHECKING:
    from partial_fc.training.report.curves_json import Run

    from .card_pages import Section

EXAMPLE = """models/r50-arcface-mine --data "1,200 volunteers, 2025" --license "internal use" --out card
models/r50-arcface-mine --pairs held_out.bin --groups held_out.csv --columns sex age"""
FOLDERS = re.compile(r"(^|[\s'\"=,\[])/(?:[^'\",\[\]]*/)?")  # of an absolute path in the text of a setting
FACES = "faces"  # the task with validation sets of image pairs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("run", metavar="RUN", help="output folder of a training, with backbone.onnx and curves.json")
    parser.add_argument("--out", default="card", metavar="NAME", help="writes NAME.md and NAME.html (default: card)")
    parser.add_argument(
        "--pairs", nargs="+", default=[], metavar="BIN", help="sets of pairs to test on (default: the training's)"
    )
    parser.add_argument("--groups", metavar="CSV", help="groups of each pair of the first set")
    parser.add_argument("--columns", nargs="+", default=[], metavar="NAME", help="columns of --groups (default: all)")
    parser.add_argument(
        "--far",
        type=number_above_0("a false accept rate", 0.5),
        default=1e-3,
        help="false accept rate of the threshold on the first set (default: 0.001)",
    )
    add_author_facts(parser)
    parser.add_argument("--batch-size", type=whole_number(2), default=64, help="images per batch (default: 64)")
    add_force(parser)
    add_json(parser)


def add_author_facts(parser: argparse.ArgumentParser) -> None:
    """Adds the options with what only the author of a model knows."""
    parser.add_argument("--data", metavar="TEXT", help="what the model was trained on, and its source")
    parser.add_argument("--data-license", metavar="TEXT", help="licence of the data")
    parser.add_argument("--license", metavar="TEXT", help="licence of the model")
    parser.add_argument("--use", metavar="TEXT", help="what the model is for, and what it is not for")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.staging import staged_files
    from partial_fc.utils.text import plural

    from .card_pages import to_html, to_markdown

    folder, name = os.path.split(args.out)
    files = [f"{name}.md", f"{name}.html"]
    if args.columns and not args.groups:
        raise ValueError("--columns needs --groups, the CSV file with these columns")
    with staged_files(folder, files, args.force) as stage:
        training, sections, sets, missing = measured_card(args)
        for file_name, render in zip(files, (to_markdown, to_html)):
            with open(os.path.join(stage, file_name), "w", encoding="utf-8", errors="replace") as file:
                file.write(render(training.name, sections))
    if args.json:
        figures = {name: each.verification._asdict() for name, each in sets.items()}
        say_json({"training": training.name, "sets": figures, "missing": missing})
    else:
        say(f"{args.out}.md, {args.out}.html: {training.name}, tested on {plural(len(sets), 'set')} of pairs")
    return 0


def measured_card(args: argparse.Namespace) -> tuple[Run, list[Section], dict[str, Any], list[str]]:
    """Returns the training, the sections of its card, the figures by set, and the sets that are missing."""
    from partial_fc.export.item_model import ItemModel
    from partial_fc.export.model import FaceModel
    from partial_fc.training.report.curves_json import read_runs

    from .card_content import card_sections
    from .card_figures import measure, sets_of_training

    (training,) = read_runs([args.run])
    # Folders of a machine, which may name its user, are not for those who read the card.
    settings = {name: FOLDERS.sub(r"\1", value) for name, value in training.settings.items()}
    training = training._replace(settings=settings)
    own_task = training.settings.get("task", FACES) != FACES
    paths, missing = (args.pairs, []) if args.pairs or own_task else sets_of_training(args.run)
    with_pairs = not own_task or args.pairs or args.groups  # a user's task may embed images as well
    model = FaceModel.open(args.run) if with_pairs else ItemModel.open(args.run)
    sets, groups = (
        measure(model, paths, args.groups, args.columns, args.batch_size) if isinstance(model, FaceModel) else ({}, {})
    )
    return training, card_sections(training, model, args, sets, groups, missing), sets, missing
