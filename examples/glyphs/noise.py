"""Writes the set of characters with wrong labels, to measure their cost: see docs/experiment.md.

flip: a fraction of the images gets the label of another character, drawn uniformly. split: a fraction of the characters
is split into two or three classes, like a person with several names. The validation sets are copied without changes.

Shapes: N images, C classes.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.synthetic.identity import random_stream
from partial_fc.data.synthetic.labels import NOISE, flipped
from partial_fc.utils.cli import add_force, add_seed, number_above_0, run_module, start
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder

from .dataset import DATA, PAIR_SETS
from .drawing import SIZE

EXAMPLE = "flip data/glyphs-flip"


def split(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Splits a fraction of the C classes of labels (N,) alternately into two and three; new ones have new numbers."""
    classes = int(labels.max()) + 1
    result, unused = labels.copy(), classes
    chosen = random_stream(seed, NOISE).random(classes).argsort(kind="stable")[: round(share * classes)]
    for number, label in enumerate(chosen.tolist()):
        images = np.flatnonzero(labels == label)
        parts = 2 + number % 2
        for part in range(1, parts):
            result[images[part::parts]] = unused
            unused += 1
    return result


KINDS = {"flip": flipped, "split": split}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("target", type=Path, help="folder of the new set")
    parser.add_argument("--source", type=Path, default=DATA / "glyphs", help="folder of the set (default: data/glyphs)")
    share, text = number_above_0("the share", 1), "fraction with errors (default: 0.2)"
    parser.add_argument("--share", type=share, default=0.2, help=text)
    add_seed(parser)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the set with noisy labels and its validation sets; returns the exit code."""
    records = FaceRecords(args.source / "train.rec")
    labels = KINDS[args.kind](records.labels(np.arange(records.num_images)), args.share, args.seed)
    if np.bincount(labels).min() == 0:
        raise ValueError(f"share={args.share} leaves a class of {args.source} without images: take a smaller one")
    order = labels.argsort(kind="stable")
    ends = np.append(np.flatnonzero(np.diff(labels[order])) + 1, len(order))

    def images_of(begin: int, end: int) -> Iterator[bytes]:
        for place in order[begin:end].tolist():
            bar.update(1)
            yield records.read_image(place)[0]

    with staged_folder(args.target, args.force) as stage, progress(len(labels), "image", "writing") as bar:
        images, classes = write_face_set(stage, map(images_of, np.append(0, ends[:-1]), ends), (SIZE, SIZE))
        for name in PAIR_SETS.values():
            shutil.copy2(args.source / name, Path(stage) / name)
        parameters = {"of": str(args.source.resolve()), "kind": args.kind, "share": args.share, "seed": args.seed}
        (Path(stage) / "noise.json").write_text(json.dumps(parameters, indent=1) + "\n")
    print(f"{args.target}: {images:,} images of {classes:,} classes; train with num_classes={classes}")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.noise", "python -m examples.glyphs.noise"))
