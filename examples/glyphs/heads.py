"""Compares ways to train on two sets whose classes overlap: one merged set, or one head for each set.

Divides the set of characters into two halves. A share of the characters is in both, with half of their images in each;
the others are in one of them. Trains on the halves with the classes of one half after the other's ("blind
merge", in which a shared character is two classes), with a head for each half, and on the set itself ("true merge").
Every update has the same number of images. See docs/pytorch.md.

A training that exists in FOLDER is not repeated: remove the folder after a change of the code.

Shapes: N images, C classes.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.synthetic.identity import random_stream
from partial_fc.utils.cli import number_above_0, run_module, start, whole_number
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.tables import markdown_table

from ..figures import mean_of, percent
from ..trainings import train
from .dataset import COSFACE, PAIR_SETS, add_folders
from .drawing import SIZE
from .evaluate import KINDS, SEARCHED, evaluated

EXAMPLE = "--root data/glyphs"
HALVES = 103  # random stream
SCHEDULE = ["num_epoch=4", "lr_epochs=[4]", "warmup_steps=200"]
QUICK = ["num_epoch=0", "max_update=20", "lr_epochs=[]", "warmup_steps=5"]
BATCH = 128  # images of an update, of all heads together
WAYS = {"blind": "blind merge", "heads": "two heads", "true": "true merge"}


def divide(labels: np.ndarray, shared: float, seed: int) -> np.ndarray:
    """Returns the half, 0 or 1, of each image (N,), by labels (N,): a share of the classes is in both halves."""
    classes = int(labels.max()) + 1
    order = random_stream(seed, HALVES).random(classes).argsort(kind="stable")
    both = round(shared * classes)
    half_of_class = np.full(classes, -1)
    half_of_class[order[both:]] = np.arange(classes - both) % 2
    number = np.arange(len(labels)) - np.searchsorted(labels, labels)  # of the image in its class; labels ascend
    half: np.ndarray = np.where(half_of_class[labels] < 0, number % 2, half_of_class[labels])
    return half


def write_sets(root: Path, folder: Path, shared: float, seed: int) -> dict[str, int]:
    """Writes both halves and their blind merge, unless they exist; returns the number of classes of each set."""
    records = FaceRecords(root / "train.rec")
    labels = records.labels(np.arange(records.num_images))
    half = divide(labels, shared, seed)
    halves = [
        [np.flatnonzero((half == number) & (labels == label)) for label in np.unique(labels[half == number])]
        for number in range(2)
    ]
    sets = {"first": halves[0], "second": halves[1], "blind": halves[0] + halves[1]}
    for name, classes in sets.items():
        if not (folder / name / "train.rec").exists():
            with staged_folder(folder / name) as stage:
                write_face_set(
                    stage,
                    (map(lambda i: records.read_image(i)[0], places.tolist()) for places in classes),
                    (SIZE, SIZE),
                )
                for pairs in PAIR_SETS.values():
                    shutil.copy2(root / pairs, Path(stage) / pairs)
    heads = [{"name": name, "rec": name, "num_classes": len(sets[name])} for name in ("first", "second")]
    (folder / "heads.json").write_text(json.dumps(heads, indent=1) + "\n")
    return {"true": records.num_identities, **{name: len(classes) for name, classes in sets.items()}}


def figures_of(way: str, root: Path, folder: Path, classes: int, schedule: Sequence[str], seed: int) -> dict[str, Any]:
    """Trains in one way, unless this has been done; returns the figures of the model on unseen characters."""
    output = folder / f"{way}-seed{seed}"
    data = [f"rec={root if way == 'true' else folder / way}", f"num_classes={classes}", f"batch_size={BATCH}"]
    if way == "heads":
        data = [f"heads={folder / 'heads.json'}", f"batch_size={BATCH // 2}"]
    train(output, *COSFACE, *schedule, *data, f"seed={seed}", "val_targets=[]")
    return evaluated(output, root)


def rows(figures: dict[str, list[dict]]) -> Iterator[list[str]]:
    """Yields a row with the mean figures over the seeds of each way, and one with the gain of heads over the merge."""
    columns = [(kind, measure) for kind in KINDS for measure in SEARCHED]
    values = {way: [[each[kind][measure][0] for each in figures[way]] for kind, measure in columns] for way in WAYS}
    for way, title in WAYS.items():
        yield [title, *(percent(mean_of(of_column)) for of_column in values[way])]
    for other in ("blind", "true"):
        gains = np.array(values["heads"]) - np.array(values[other])
        yield [f"two heads - {WAYS[other]}, points", *(percent(mean_of(list(gain)), "+") for gain in gains)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_folders(parser, "heads")
    text = "fraction of the characters that are in both halves (default: 0.5)"
    parser.add_argument("--shared", type=number_above_0("the fraction", 1), default=0.5, help=text)
    parser.add_argument("--seeds", type=whole_number(0), nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="run 20 updates per training")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    root, folder = args.root.resolve(), args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    classes = write_sets(root, folder, args.shared, 0)
    print(", ".join(f"{name} {number:,} classes" for name, number in classes.items()), flush=True)
    figures: dict[str, list[dict]] = {way: [] for way in WAYS}
    for seed in args.seeds:
        for way in WAYS:
            schedule = QUICK if args.quick else SCHEDULE
            figures[way].append(figures_of(way, root, folder, classes.get(way, 0), schedule, seed))
    names = [f"{measure}, {kind}" for kind in KINDS.values() for measure in SEARCHED.values()]
    print("\n".join(markdown_table(["", *names], list(rows(figures)))))
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.heads", "python -m examples.glyphs.heads"))
