"""Measures what `partial-fc sets clean` finds in sets of characters with known errors, and what cleaning gains.

Writes variants of the set with wrong labels, with split classes, and with planted copies and characters of a test set
(planted.py). Trains on each variant, cleans it with the resulting model, and trains again on the cleaned set. See
docs/cleaning.md. A training that exists in FOLDER is not repeated: remove the folder after a change of the code.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from partial_fc.data.face_records import FaceRecords, read_property
from partial_fc.utils.cli import add_seed, run_module, start
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.tables import markdown_table
from partial_fc_tools.__main__ import main as partial_fc

from ..figures import Figure, percent
from ..trainings import train
from . import noise
from .dataset import COSFACE, add_folders
from .evaluate import KINDS, SEARCHED, evaluated
from .planted import TEST, write_planted

EXAMPLE = "--root data/glyphs"
SHARE = 0.2  # fraction of wrong labels, and of split classes
COPIES, PERSONS = 0.05, 100  # fraction of planted copies; number of planted test characters
SCHEDULE = ["batch_size=128", "num_epoch=8", "lr_epochs=[7]", "warmup_steps=300"]
SHORT = ["num_epoch=4", "lr_epochs=[3]"]  # for the planted set, which is not evaluated on unseen characters
# With fewer updates, `sets clean` refuses the model because it does not separate the classes.
QUICK = ["batch_size=32", "num_epoch=0", "max_update=80", "lr_epochs=[]", "warmup_steps=5", "val_targets=[]"]
QUICK += ["baselines=False"]  # evaluate.py verifies
FILTER = "margin_options=interclass_filtering_threshold=0.4"


class Study:
    """The sets and trainings of the study.

    Args:
        root: folder of the set of characters. The variants are written next to it.
        folder: folder of the trainings.
        schedule: settings of all trainings.
        seed: seed of the noise and the trainings.
    """

    def __init__(self, root: Path, folder: Path, schedule: Sequence[str], seed: int):
        self.root, self.folder, self.schedule, self.seed = root, folder, schedule, seed

    def set_folder(self, name: str) -> Path:
        """Returns the folder of a variant; "clean" is the set of characters itself."""
        return self.root if name == "clean" else self.root.with_name(f"{self.root.name}-{name}")

    def train(self, name: str, set_name: str, *settings: str) -> None:
        """Trains on a set and verifies the model on unseen characters, unless this has been done."""
        rec = self.set_folder(set_name)
        words = [f"rec={rec}", f"num_classes={(read_property(rec / 'train.rec') or [0])[0]}", f"seed={self.seed}"]
        train(self.folder / name, *COSFACE, *words, *self.schedule, *settings)
        evaluated(self.folder / name, self.root)

    def clean(self, name: str, *options: str) -> dict[int, dict[str, str]]:
        """Cleans a set with the model that was trained on it; returns the changes by key."""
        target = self.set_folder(f"{name}-cleaned")
        words = [self.set_folder(name), target, "--model", self.folder / name, "--force", *options]
        if partial_fc(["sets", "clean", *map(str, words)]):
            raise SystemExit(1)
        with open(target / "changes.csv", encoding="utf-8", newline="") as file:
            return {int(row["key"]): row for row in csv.DictReader(file)}

    def write_noise(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Writes a set with noisy labels; returns the true and the noisy labels (N,) of its images."""
        target = self.set_folder(kind)
        if not (target / "train.rec").exists():
            words = [kind, str(target), "--source", str(self.root), "--share", str(SHARE), "--seed", str(self.seed)]
            if run_module("examples.glyphs.noise", "noise", words):
                raise SystemExit(1)
        records = FaceRecords(self.root / "train.rec")
        true = records.labels(np.arange(records.num_images))
        noisy = noise.KINDS[kind](true, SHARE, self.seed)
        order = noisy.argsort(kind="stable")
        return true[order], noisy[order]

    def write_planted(self) -> dict[str, list[int]]:
        """Writes the set with planted copies and test characters; returns their keys and classes."""
        target = self.set_folder("planted")
        if not (target / "train.rec").exists():
            with staged_folder(target) as stage:
                write_planted(self.root, Path(stage), COPIES, PERSONS, self.seed)
        planted: dict[str, list[int]] = json.loads((target / "planted.json").read_text())
        return planted


def found_rows(study: Study) -> Iterator[list[str]]:
    """Cleans each set; yields a row for each kind of error: its name, the number found, precision and recall."""
    true, noisy = study.write_noise("flip")
    study.train("flip", "flip")
    changes = study.clean("flip")
    wrong = set((1 + np.flatnonzero(true != noisy)).tolist())
    named = {key: row for key, row in changes.items() if row["reason"] == "wrong label"}
    yield score("wrong labels", set(named), wrong)
    right = [int(row["new_class"]) == true[key - 1] for key, row in named.items() if row["new_class"]]
    yield ["wrong labels that are replaced", f"{len(right):,}", f"{100 * np.mean(right or [0]):.1f}", ""]

    true, noisy = study.write_noise("split")
    study.train("split", "split")
    changes = study.clean("split")
    merged = {int(row["class"]): int(row["new_class"]) for row in changes.values() if row["reason"] == "split class"}
    groups = [{*group, target} for target, group in inverse(merged).items()]
    yield score("pairs of split classes", pairs_in(groups), pairs_in(inverse(dict(zip(noisy, true))).values()))

    planted = study.write_planted()
    study.train("planted", "planted", *([] if study.schedule == QUICK else SHORT))
    changes = study.clean("planted", "--against", str(study.set_folder("planted") / TEST))
    copies = {key for key, row in changes.items() if row["reason"] == "near-duplicate"}
    of_persons = {key: row for key, row in changes.items() if row["reason"] == "test person"}
    persons = classes_of_persons(of_persons.values())
    yield score("near-duplicates", copies, set(planted["copies"]) - of_persons.keys())
    yield score("classes of a test set", persons, set(planted["classes"]))


def classes_of_persons(rows: Iterable[Mapping[str, str]]) -> set[int]:
    """Returns the class of each test person by majority vote, as some of its images may have a wrong label."""
    of_person: dict[str, Counter[int]] = {}
    for row in rows:
        of_person.setdefault(row["other"], Counter())[int(row["class"])] += 1
    return {labels.most_common(1)[0][0] for labels in of_person.values()}


def inverse(value_of: Mapping[int, int]) -> dict[int, set[int]]:
    """Returns the set of keys for each value."""
    result: dict[int, set[int]] = {}
    for key, value in value_of.items():
        result.setdefault(int(value), set()).add(int(key))
    return result


def pairs_in(groups: Iterable[set[int]]) -> set[tuple[int, ...]]:
    """Returns all pairs within each group."""
    return {pair for group in groups for pair in combinations(sorted(group), 2)}


def score(name: str, found: set, true: set) -> list[str]:
    """Returns a row with the number found, and precision and recall in percent."""
    right = len(found & true)
    return [name, f"{len(found):,}", *(f"{100 * right / len(keys):.1f}" if keys else "-" for keys in (found, true))]


def trained_rows(study: Study) -> Iterator[list[str]]:
    """Trains on each set; yields rows of the figures on unseen characters."""
    runs = {"no errors": ("clean", "clean"), "20 % wrong labels": ("flip", "flip")}
    runs["20 % wrong labels, filter"] = ("flip-filter", "flip")
    runs["20 % wrong labels, cleaned"] = ("flip-cleaned", "flip-cleaned")
    runs["20 % of the classes split"] = ("split", "split")
    runs["20 % of the classes split, cleaned"] = ("split-cleaned", "split-cleaned")
    for title, (name, set_name) in runs.items():
        study.train(name, set_name, *([FILTER] if name.endswith("filter") else []))
        records = FaceRecords(study.set_folder(set_name) / "train.rec")
        figures = evaluated(study.folder / name, study.root)
        cells = [percent(Figure(*figures[kind][measure])) for kind in KINDS for measure in SEARCHED]
        yield [title, f"{records.num_images:,}", f"{records.num_identities:,}", *cells]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_folders(parser, "cleaning")
    add_seed(parser)
    parser.add_argument("--quick", action="store_true", help="run 80 updates per training")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    study = Study(args.root.resolve(), args.folder.resolve(), QUICK if args.quick else SCHEDULE, args.seed)
    found = markdown_table(["", "found", "precision, %", "recall, %"], list(found_rows(study)))
    print("\n".join(["", *found, ""]), flush=True)
    columns = [f"{measure}, {kind}" for kind in KINDS.values() for measure in SEARCHED.values()]
    print("\n".join(markdown_table(["trained on", "images", "classes", *columns], list(trained_rows(study)))))
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.cleaning", "python -m examples.glyphs.cleaning"))
