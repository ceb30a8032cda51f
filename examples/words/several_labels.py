"""Trains on forms that belong to several lexemes: with all of them as labels, with one at random, or as several items.

Takes the lexemes that share a form with another one. Prints the figures of unseen ones, and the recall of the lexemes
of ambiguous forms: for a form of n > 1 lexemes that were trained on, the fraction of them whose normal forms are among
the n nearest of all. This leaves out lexemes whose normal form is ambiguous. See docs/clusters.md. A training that
exists in FOLDER is not repeated: remove the folder after a change of the code.

Shapes: Q ambiguous forms, M lexemes, n lexemes of a form.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from partial_fc.data.synthetic.writer import SyntheticSet
from partial_fc.export.item_model import ItemModel
from partial_fc.utils.cli import add_seed, run_module, start, whole_number
from partial_fc.utils.tables import markdown_table

from ..trainings import TORCH, train
from .evaluate import measure_of
from .lexemes import DATA, FILES, Lexemes, read_set, split_lexemes

EXAMPLE = "--root data/words"
CASES = {
    "an item for each lexeme": ["several_labels=False"],
    "one of the lexemes, drawn in each epoch": ["several_labels=True", "labels_per_item=1"],
    "all lexemes": ["several_labels=True"],
}
FIGURES = {"rank-1": ("search", "rank1"), "TAR at FAR 1e-4": ("search", "tar_at_far_1e_4")}


def ambiguous_set(root: Path) -> Path:
    """Writes a set of the lexemes that share a form with another one, unless it exists; returns its folder."""

    def write(folder: Path) -> None:
        kept = np.flatnonzero(np.logical_or.reduceat(lexemes.shared, lexemes.starts[:-1]))
        rows, counts = lexemes.forms(kept), lexemes.starts[kept + 1] - lexemes.starts[kept]
        for name, array in zip(FILES, (lexemes.letters[rows], np.cumsum([0, *counts]), lexemes.shared[rows])):
            np.save(folder / name, array)

    lexemes, source = read_set(root), json.loads((root / "lexemes.json").read_text())
    folder = root.with_name(f"{root.name}-ambiguous")
    words = SyntheticSet(folder, "lexemes.json", {"ambiguous forms of": source}, FILES)
    if not words.is_current():
        words.write(write)
    return folder


def ambiguous_forms(lexemes: Lexemes, chosen: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the rows (Q,) of forms of several ``chosen`` lexemes (M,), and the positions (n,) of these lexemes."""
    rows = lexemes.forms(chosen)
    position = np.repeat(np.arange(len(chosen)), lexemes.starts[chosen + 1] - lexemes.starts[chosen])
    words = lexemes.words(rows)
    order = words.argsort(kind="stable")
    firsts = np.flatnonzero(np.append(True, words[order[1:]] != words[order[:-1]]))
    groups = [group for group in np.split(order, firsts[1:]) if len(group) > 1]
    return rows[[group[0] for group in groups]], [position[group] for group in groups]


def recall(model: ItemModel, lexemes: Lexemes, trained: np.ndarray) -> float:
    """Returns the recall of the lexemes of ambiguous forms among the lexemes ``trained``."""
    chosen = trained[~lexemes.shared[lexemes.starts[trained]]]
    rows, of_form = ambiguous_forms(lexemes, chosen)
    represent = measure_of(model).represent
    probes, gallery = (represent(lexemes.letters[words]) for words in (rows, lexemes.starts[chosen]))
    shares = []
    for probe, own in zip(probes, of_form):
        nearest = np.argpartition(-(gallery @ probe), len(own))[: len(own)]
        shares.append(np.isin(own, nearest).mean())
    return float(np.mean(shares))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--root", type=Path, default=DATA / "words", help="folder of the set (default: data/words)")
    parser.add_argument(
        "--folder", type=Path, default=DATA.parent / "models" / "several-labels", help="folder of the trainings"
    )
    parser.add_argument("--updates", type=whole_number(1), default=1000, help="updates per training (default: 1000)")
    parser.add_argument("--unseen", type=whole_number(20), default=2000, help="unseen lexemes (default: 2000)")
    add_seed(parser)
    parser.add_argument("settings", nargs="*", metavar="name=value", help="further settings of all trainings")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    root, folder = ambiguous_set(args.root.resolve()), args.folder.resolve()
    lexemes = read_set(root)
    trained = split_lexemes(lexemes, 0, args.unseen, seed=0).trained
    rows = []
    for number, (name, (option, *settings)) in enumerate(CASES.items()):
        output = folder / f"case{number}-seed{args.seed}"
        words = ["--config", "examples/words/settings.json", f"data_root={root.parent}", f"data_name={root.name}"]
        words += [f"num_classes={len(trained)}", "batch_size=256", "baselines=False", "num_epoch=0"]
        words += [f"task_options=unseen={args.unseen},pairs={3 * args.unseen},{option}", f"max_update={args.updates}"]
        train(output, *words, f"seed={args.seed}", *settings, *args.settings, python=TORCH)
        details = json.loads((output / "summary.json").read_text())["verification_details"]
        figures = [details[kind][figure] for kind, figure in FIGURES.values()]
        figures.append(recall(ItemModel.open(output), lexemes, trained))
        rows.append([name, *(f"{100 * figure:.2f}" for figure in figures)])
    print("\n".join(markdown_table(["labels of a form", *FIGURES, "recall, ambiguous forms"], rows)))
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.words.several_labels", "python -m examples.words.several_labels"))
