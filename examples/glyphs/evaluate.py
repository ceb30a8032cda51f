"""Verifies a model on characters and typefaces that it was not trained on.

For the typefaces of training and for new ones: the accuracy of verification in ten folds (insightface's measure); and
of a search in a gallery with one plain image of each unseen character, rank-1 and the TAR of all pairs of an image and
an entry at a FAR of 1e-4. Each with the half-width of its 95 % confidence interval: Student's t of the folds, or
characters drawn with replacement (at the same threshold).

Shapes: N images, M characters, Q probes, E embedding.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.ijb.identification import search
from partial_fc.evaluation.ijb.verification import Roc, max_accepted
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc.evaluation.verification import FOLDS, verify
from partial_fc.inference.index import Recipe, embed_items
from partial_fc.inference.model import FaceModel
from partial_fc.utils.cli import run_module, start
from partial_fc.utils.progress import progress
from partial_fc.utils.tables import markdown_table

from .dataset import DATA, GALLERY, PAIR_SETS
from .drawing import SIZE

EXAMPLE = "models/small-cosface-glyphs"
FAR = 1e-4
RECIPE = Recipe(mirrored=False, batch_size=256)  # a mirrored character is another one
# 97.5 % quantiles of Student's t by the number of values.
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
DRAWS = 1000  # of the characters, for an interval


class Figure(NamedTuple):
    """A share, or a difference of two, and the half-width of its 95 % confidence interval."""

    value: float
    margin: float


def embed(model: FaceModel, images: list[bytes], name: str) -> np.ndarray:
    """Returns (N, E) float32 of length 1 of N encoded images."""
    parts = []
    with progress(len(images), "image", f"embedding {name}") as bar:
        for first in range(0, len(images), RECIPE.batch_size):
            part = images[first : first + RECIPE.batch_size]
            names = [f"image {first + place} of {name}" for place in range(len(part))]
            parts.append(embed_items(model, decode_faces(part, SIZE, name, first), names, RECIPE))
            bar.update(len(part))
    return np.concatenate(parts)


def search_hits(probes: np.ndarray, gallery: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rank1 and tar, (Q,) bool, of probes (Q, E) with rows (Q,) of their characters in the gallery (M, E)."""
    with progress(len(probes), "probe", "searching") as bar:
        mate, _, rank = search(probes, gallery, labels, bar)
    scores = probes @ gallery.T
    same = np.arange(len(gallery)) == labels[:, None]
    threshold = Roc(scores.ravel(), same.ravel()).highest_refused(max_accepted(FAR, int(np.sum(~same))))
    return {"rank1": rank == 1, "tar": mate > threshold}


def with_margin(labels: np.ndarray, values: np.ndarray) -> Figure:
    """Returns the mean of values (Q,); its interval over characters `labels` (Q,) drawn with replacement."""
    counts, sums = np.bincount(labels), np.bincount(labels, values)
    sums, counts = sums[counts > 0], counts[counts > 0]
    drawn = (np.random.Generator(np.random.PCG64(0)).random((DRAWS, len(counts))) * len(counts)).astype(np.int64)
    shares = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(shares, [2.5, 97.5])
    return Figure(float(values.mean()), float(high - low) / 2)


def percent(figure: Figure) -> str:
    """Returns a figure as text."""
    return f"{100 * figure.value:.2f} ± {100 * figure.margin:.2f}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("model", type=Path, help="an .onnx file, or the folder of a training")
    parser.add_argument("--root", type=Path, default=DATA / "glyphs", help="folder of the set (default: data/glyphs)")
    parser.add_argument("--out", type=Path, help="also write the figures to OUT.json, and the hits to OUT.npz")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    model = FaceModel.open(args.model)
    with open(args.root / "unseen" / "images.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    kinds = np.array([row["kind"] for row in rows])
    labels = np.array([int(row["label"]) for row in rows])
    records = FaceRecords(args.root / "unseen" / "train.rec")
    embeddings = embed(model, [records.read_image(place)[0] for place in range(len(rows))], "unseen")
    gallery = embeddings[kinds == GALLERY]
    figures: dict[str, dict[str, Figure]] = {}
    hits: dict[str, np.ndarray] = {}  # (Q,) bool of each kind for rank1 and tar, and the rows (Q,) of the characters
    for kind, name in PAIR_SETS.items():
        images, issame = read_pairs(args.root / name)
        result = verify(embed(model, images, name), issame)
        accuracy = Figure(result.accuracy, STUDENT[FOLDS] * result.std / np.sqrt(FOLDS - 1))
        own = labels[kinds == kind]
        found = search_hits(embeddings[kinds == kind], gallery, own)
        figures[kind] = {"accuracy": accuracy, **{name: with_margin(own, values) for name, values in found.items()}}
        hits |= {f"{kind}_{name}": values for name, values in {"labels": own, **found}.items()}
    table = [[kind, *(percent(of[name]) for name in ("accuracy", "tar", "rank1"))] for kind, of in figures.items()]
    print("\n".join(markdown_table(["typefaces", "accuracy", "TAR at FAR 1e-4", "rank-1"], table)))
    if args.out:
        np.savez_compressed(f"{args.out}.npz", **hits)
        Path(f"{args.out}.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.evaluate", "python -m examples.glyphs.evaluate"))
