"""Trains on frequent and rare characters, and compares margins on both.

Of the images of each character, the last four are for the test, and character c keeps 16 / (1 + 5 c / C) of the others:
a fifth of the characters has 8 images or more, and more than half have 2 to 4. An image of the test is right if the
center of its character is the nearest of all centers. The margin RareClasses is rare.py of docs/extend.md in the
current folder. A training that exists in FOLDER is not repeated.

Shapes: N images, C characters.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.export.model import FaceModel
from partial_fc.utils.cli import run_module, start, whole_number
from partial_fc.utils.tables import markdown_table

from ..figures import mean_of, percent
from ..trainings import TORCH, train
from .dataset import add_folders
from .evaluate import embed

EXAMPLE = "--root data/glyphs"
TESTED, MOST = 4, 16  # images of a character
HALVED = 5  # character C / HALVED has half of the images of the first one
RARE = "margin=rare:RareClasses"
MARGINS = {
    "m = 0.4": ["margin_options=m1=1,m2=0,m3=0.4"],
    "m = 0.5": ["margin_options=m1=1,m2=0,m3=0.5"],
    "m = 0.7": ["margin_options=m1=1,m2=0,m3=0.7"],
    "RareClasses, m = 0.7": [RARE, "margin_options=m=0.7,counts={counts}"],
}
SCHEDULE = ["batch_size=64", "num_epoch=12", "schedule=cosine", "warmup_steps=100", "max_grad_norm=5"]
GROUPS = {"8 to 16": (8, MOST), "5 to 7": (5, 7), "2 to 4": (2, 4)}


def thinned(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels of the training (N, 1), -1 for an image without one, and which images are tested (N,) bool.

    Args:
        labels: the characters (N,), sorted.

    Raises:
        ValueError: A character has fewer images than MOST + TESTED.
    """
    classes, firsts, counts = np.unique(labels, return_index=True, return_counts=True)
    if counts.min() < MOST + TESTED:
        raise ValueError(f"a character has {counts.min()} images: write a set with --images {MOST + TESTED}")
    place = np.arange(len(labels)) - firsts[labels]  # of an image among those of its character
    kept = (MOST / (1 + HALVED * classes / len(classes))).astype(int)
    return np.where(place < kept[labels], labels, -1)[:, None], place >= (counts - TESTED)[labels]


def accuracies(folder: Path, records: FaceRecords, labels: np.ndarray, trained: np.ndarray) -> Iterator[float]:
    """Yields the accuracy of each of GROUPS, for the model in ``folder``.

    Args:
        folder: of a training.
        records: the N images.
        labels: characters (N,) of the images to test, -1 for the others.
        trained: images of each character in the training (C,).
    """
    positions = np.flatnonzero(labels >= 0)
    images = [records.read_image(position)[0] for position in positions]
    (checkpoint,) = folder.glob("checkpoints/*/centers-00000.npy")
    centers = np.load(checkpoint)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    right = (embed(FaceModel.open(folder), images, folder.name) @ centers.T).argmax(axis=1) == labels[positions]
    for low, high in GROUPS.values():
        count = trained[labels[positions]]
        yield float(right[(count >= low) & (count <= high)].mean())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_folders(parser, "thinned")
    parser.add_argument("--seeds", type=whole_number(0), nargs="+", default=[0, 1, 2], help="default: 0 1 2")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    folder, root = args.folder.resolve(), args.root.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    records = FaceRecords(root / "train.rec")
    characters = records.labels(np.arange(records.num_images))
    labels, is_tested = thinned(characters)
    counts = np.bincount(labels[labels >= 0])
    np.save(folder / "labels.npy", labels)
    np.save(folder / "counts.npy", counts)
    words = ["--dataset", "glyphs", f"rec={root}", f"labels={folder / 'labels.npy'}", f"num_classes={len(counts)}"]
    words += ["min_images_per_class=1", "margin=combined", "val_targets=[]", "baselines=False"]
    rows: list[list[str]] = []
    for name, settings in MARGINS.items():
        figures = []
        for seed in args.seeds:
            output = folder / f"margin{len(rows)}-seed{seed}"
            margin = [setting.format(counts=folder / "counts.npy") for setting in settings]
            train(output, *words, f"seed={seed}", *SCHEDULE, *margin, python=TORCH, cwd=None)
            figures.append(list(accuracies(output, records, np.where(is_tested, characters, -1), counts)))
        rows.append([name, *(percent(mean_of(group)) for group in zip(*figures))])
    print("\n".join(markdown_table(["margin", *(f"{group} images" for group in GROUPS)], rows)))
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.thinned", "python -m examples.glyphs.thinned"))
