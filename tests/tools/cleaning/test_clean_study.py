"""The program of docs/cleaning.md with a tiny model: it finds most errors, and counts them correctly."""

import json

import numpy as np
import pytest

from examples.glyphs import cleaning, planted
from examples.glyphs.dataset import PAIR_SETS
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.pairs_bin import read_pairs, write_pairs
from patterns import photos_of
from tiny_onnx import TinyModel

CLASSES, IMAGES, SIZE = 20, 12, 64


class Study(cleaning.Study):
    """Takes a tiny model instead of a training."""

    def train(self, name, set_name, *settings):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        TinyModel(size=(SIZE, SIZE), features=64).write(self.folder / name / "backbone.onnx")
        figures = {kind: {measure: [0.5, 0.01] for measure in cleaning.SEARCHED} for kind in cleaning.KINDS}
        (self.folder / f"{name}.json").write_text(json.dumps(figures))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of patterns; six of them are unseen."""
    random = np.random.default_rng(0)
    patterns = random.integers(60, 196, (CLASSES + 6, 8, 8, 3))
    images = photos_of(patterns, IMAGES, 25, random, SIZE)
    root = tmp_path / "patterns"
    write_face_set(root, images[:CLASSES], (SIZE, SIZE))
    unseen = [each[number] for number in range(IMAGES) for each in images[CLASSES:]]
    for name in PAIR_SETS.values():
        write_pairs(root / name, unseen, [False] * (len(unseen) // 2))
    monkeypatch.setattr(cleaning, "PERSONS", 3)
    return Study(root, tmp_path / "models", [], 0)


def test_known_errors_are_found_and_counted(study):
    rows = {name: cells for name, *cells in cleaning.found_rows(study)}
    assert float(rows.pop("wrong labels that are replaced")[1]) > 90
    assert list(rows) == ["wrong labels", "pairs of split classes", "near-duplicates", "classes of a test set"]
    for _, precision, recall in rows.values():
        assert float(precision) > 90 and float(recall) > 60
    table = {name: cells for name, *cells in cleaning.trained_rows(study)}
    assert table["20 % of the classes split"][:3] == ["240", "26", "50.00 ± 1.00"]
    assert int(table["20 % of the classes split, cleaned"][1]) == CLASSES


def test_planted_images_are_in_the_set_or_in_the_test_set(study):
    found = study.write_planted()
    source, target = (FaceRecords(folder / "train.rec") for folder in (study.root, study.set_folder("planted")))
    images, issame = read_pairs(study.set_folder("planted") / planted.TEST)
    originals = [source.read_image(position)[0] for position in range(source.num_images)]
    written = [target.read_image(position)[0] for position in range(target.num_images)]
    assert len(found["classes"]) == 3 and issame.sum() == 6 == (~issame).sum()
    held_out = [originals[IMAGES * label + number] for label in found["classes"] for number in range(4)]
    assert images[:12] == held_out and not set(images) & set(written)
    copies = [written[key - 1] for key in found["copies"]]
    assert len(copies) > 3 and not set(copies) & set(originals)
    assert len(written) == len(originals) - 12 + len(copies)


def test_a_test_person_is_counted_by_most_of_its_images():
    rows = [("3", "test.bin 0"), ("3", "test.bin 0"), ("7", "test.bin 0"), ("5", "test.bin 9")]
    assert cleaning.classes_of_persons({"class": label, "other": other} for label, other in rows) == {3, 5}


def test_pairs_are_counted_once():
    assert cleaning.pairs_in([{3, 1, 2}, {7}]) == {(1, 2), (1, 3), (2, 3)}
    assert cleaning.score("", {1, 2, 3}, {2, 3, 4, 5}) == ["", "3", "66.7", "50.0"]
    assert cleaning.score("", set(), {2}) == ["", "0", "-", "0.0"]
