"""Verifies a model on characters and typefaces that it was not trained on.

Prints two kinds of figures for the typefaces of training and for new typefaces: the verification accuracy in ten folds,
as in insightface; and, for a search in a gallery with one plain image per unseen character, rank-1 and the TAR at a
FAR of 1e-4. Each has a 95 % confidence interval, by Student's t over the folds or by drawing characters with
replacement.

Shapes: N images, E embedding.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc.evaluation.verification import accuracy_margin, verify
from partial_fc.export.model import FaceModel
from partial_fc.utils.cli import run_module, start
from partial_fc.utils.progress import progress
from partial_fc.utils.tables import markdown_table
from partial_fc_tools.inference.index import Recipe, embed_items

from ..figures import Figure, percent
from ..search_figures import Scores, search_figures, search_scores
from .dataset import DATA, GALLERY, NEW, PAIR_SETS, TRAINED, add_folders
from .drawing import SIZE

EXAMPLE = "models/small-cosface-glyphs"
FARS = {"tar": 1e-4}
SEARCHED = {"tar": "TAR at FAR 1e-4", "rank1": "rank-1"}
MEASURES = {"accuracy": "accuracy", **SEARCHED}
KINDS = {TRAINED: "typefaces of training", NEW: "new typefaces"}
RECIPE = Recipe(mirrored=False, batch_size=256)  # a mirrored character is a different character


def embed(model: FaceModel, images: list[bytes], name: str) -> np.ndarray:
    """Returns the normalized embeddings (N, E) float32 of N encoded images."""
    parts = []
    with progress(len(images), "image", f"embedding {name}") as bar:
        for first in range(0, len(images), RECIPE.batch_size):
            part = images[first : first + RECIPE.batch_size]
            parts.append(embed_items(model, decode_faces(part, SIZE, name, first), RECIPE))
            bar.update(len(part))
    return np.concatenate(parts)


def read_unseen(root: Path) -> tuple[FaceRecords, np.ndarray, np.ndarray]:
    """Opens the images of the unseen characters; returns them with their labels (N,) and kinds (N,)."""
    with open(root / "unseen" / "images.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    labels, kinds = np.array([int(row["label"]) for row in rows]), np.array([row["kind"] for row in rows])
    return FaceRecords(root / "unseen" / "train.rec"), labels, kinds


def search_unseen(embeddings: np.ndarray, labels: np.ndarray, kinds: np.ndarray) -> dict[str, Scores]:
    """Searches unseen characters (N, E) in the gallery; returns the scores for each kind of typefaces."""
    gallery = embeddings[kinds == GALLERY]
    parts = {kind: kinds == kind for kind in KINDS}
    return {
        kind: search_scores(lambda a, b: a @ b.T, embeddings[part], gallery, labels[part], FARS)
        for kind, part in parts.items()
    }


def evaluated(output: Path, root: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of a training's model by kind and name, which the command writes beside it only once."""
    figures = output.with_suffix(".json")
    if not figures.exists():
        words = ["-m", "examples.glyphs.evaluate", str(output), "--root", str(root), "--out", str(output)]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=DATA.parent)
    read: dict[str, dict[str, list[float]]] = json.loads(figures.read_text())
    return read


def write_scores(path: Path, scores: Mapping[str, Scores]) -> None:
    """Writes the search scores for each kind of typefaces."""
    arrays = {f"{kind}_{name}": array for kind, score in scores.items() for name, array in score._asdict().items()}
    np.savez_compressed(path, **arrays)


def read_scores(path: Path) -> dict[str, Scores]:
    """Reads a file of write_scores()."""
    with np.load(path) as file:
        return {kind: Scores(*(file[f"{kind}_{name}"] for name in Scores._fields)) for kind in KINDS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("model", type=Path, help="an .onnx file, or the folder of a training")
    add_folders(parser)
    parser.add_argument("--out", type=Path, help="also write the figures to OUT.json and the scores to OUT.npz")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    model = FaceModel.open(args.model)
    records, labels, kinds = read_unseen(args.root)
    embeddings = embed(model, [records.read_image(place)[0] for place in range(len(labels))], "unseen")
    scores = search_unseen(embeddings, labels, kinds)
    figures: dict[str, dict[str, Figure]] = {}
    for kind, name in PAIR_SETS.items():
        images, issame = read_pairs(args.root / name)
        result = verify(embed(model, images, name), issame)
        accuracy = Figure(result.accuracy, accuracy_margin(result.std))
        figures[kind] = {"accuracy": accuracy, **search_figures(scores[kind], FARS)}
    table = [[kind, *(percent(figure[name]) for name in MEASURES)] for kind, figure in figures.items()]
    print("\n".join(markdown_table(["typefaces", *MEASURES.values()], table)))
    if args.out:
        write_scores(Path(f"{args.out}.npz"), scores)
        Path(f"{args.out}.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.evaluate", "python -m examples.glyphs.evaluate"))
