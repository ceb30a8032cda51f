"""Compares models with edit distances and n-grams on lexemes that were not trained on.

For pairs of forms it prints the accuracy in ten folds, as in insightface, and the TAR at a FAR of at most 1e-3. Because
of equal scores, the measured FAR may be lower. For a search of forms in the normal forms of all unseen lexemes it
prints rank-1 and the TAR at two FARs. The 95 % confidence intervals are by Student's t over the folds, or by drawing
lexemes with replacement; the TAR of the pairs has none.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from partial_fc.evaluation.verification import accuracy_margin
from partial_fc.export.item_model import ItemModel
from partial_fc.utils.cli import run_module, start, whole_number
from partial_fc.utils.tables import markdown_table

from ..figures import Figure, percent
from ..search_figures import search_figures, search_scores
from .baselines import baselines
from .heldout import FARS, FIGURES, Measure, held_out, verify_pairs
from .lexemes import DATA, read_set, split_lexemes
from .task import SIZES

EXAMPLE = "models/words"
BATCH = 512
COLUMNS = {
    "accuracy": "accuracy",
    "tar_at_far": "TAR at FAR <= 1e-3",
    "measured_far": "measured FAR",
    **dict(zip(FIGURES, ("rank-1", "TAR at FAR <= 1e-4", "TAR at FAR <= 1e-6"))),
}


def measure_of(model: ItemModel) -> Measure:
    """Returns a model's measure, the cosine of embeddings."""

    def represent(letters: np.ndarray) -> np.ndarray:
        embeddings = model.embed(letters, BATCH)
        return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)

    return Measure(represent, lambda left, right: (left * right).sum(axis=1), lambda left, right: left @ right.T)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("models", type=Path, nargs="*", help=".onnx files or folders of trainings")
    parser.add_argument("--root", type=Path, default=DATA / "words", help="folder of the set (default: data/words)")
    parser.add_argument(
        "--classes", type=whole_number(0), default=10000, help="training lexemes for the n-grams (default: 10000)"
    )
    for setting in SIZES:
        text = f"{setting.help} (default: {setting.default})"
        parser.add_argument(f"--{setting.name}", type=whole_number(1), default=setting.default, help=text)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    lexemes = read_set(args.root)
    split = split_lexemes(lexemes, args.classes, args.unseen, seed=0)
    held = held_out(lexemes, split.unseen, args.pairs, args.probes, seed=0)
    opened = {str(path): ItemModel.open(path) for path in args.models}
    measures = {
        **baselines(lexemes.letters[lexemes.forms(split.trained)]),
        **{name: measure_of(model) for name, model in opened.items()},
    }
    figures = {}
    for name, measure in measures.items():
        probes, gallery = map(measure.represent, (held.probes, held.gallery))
        scores = search_scores(measure.all_similarities, probes, gallery, held.mates, FARS)
        pairs = {key: Figure(value, float("nan")) for key, value in verify_pairs(measure, held)._asdict().items()}
        accuracy = Figure(pairs["accuracy"].value, accuracy_margin(pairs["std"].value))
        figures[name] = {**pairs, "accuracy": accuracy, **search_figures(scores, FARS)}
    rows = [[name, *(percent(of[column]) for column in COLUMNS)] for name, of in figures.items()]
    print("\n".join(markdown_table(["%", *COLUMNS.values()], rows)))
    if args.out:
        values = {name: {key: figure.value for key, figure in of.items()} for name, of in figures.items()}
        args.out.write_text(json.dumps(values, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.words.evaluate", "python -m examples.words.evaluate"))
