"""The program of docs/clusters.md with a tiny model in place of trainings."""

import csv

import numpy as np
import pytest

from examples.glyphs import clusters
from examples.glyphs.evaluate import KINDS
from partial_fc.data.face_records import write_face_set
from patterns import photos_of
from tiny_onnx import TinyModel

pytest.importorskip("faiss", reason="pip install faiss-cpu")
CHARACTERS, IMAGES, SIZE = 12, 8, 64


class Study(clusters.Study):
    """Takes a tiny model instead of a training, whose settings it keeps."""

    trained: dict[str, tuple[str, ...]] = {}

    def train(self, name, *settings):
        (self.folder / name).mkdir()
        TinyModel(size=(SIZE, SIZE), features=64).write(self.folder / name / "backbone.onnx")
        self.trained[name] = settings
        return name


@pytest.fixture
def root(tmp_path):
    """A set of patterns with noise; half of them are unseen."""
    random = np.random.default_rng(0)
    patterns = random.integers(60, 196, (2 * CHARACTERS, 8, 8, 3))
    root, images = tmp_path / "patterns", photos_of(patterns, IMAGES, 25, random, SIZE)
    write_face_set(root, images[:CHARACTERS], (SIZE, SIZE))
    write_face_set(root / "unseen", images[CHARACTERS:], (SIZE, SIZE))
    kinds = ["gallery", *(kind for kind in KINDS for _ in range((IMAGES - 1) // 2)), "new"]
    with open(root / "unseen" / "images.tsv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["label", "kind"])
        writer.writerows([label, kind] for label in range(CHARACTERS) for kind in kinds)
    return root


def test_each_round_trains_on_the_clusters_of_the_one_before(root, tmp_path):
    study = Study(root, tmp_path / "models", None, [], 0)
    rows = {tuple(cells[:2]): cells[2:] for cells in study.rows(2, 0)}
    names = [f"clusters, P = {labels}" for labels in clusters.LABELS]
    expected = [("random clusters", ""), ("pixels", "0"), *((name, number) for name in names for number in "12")]
    assert list(rows) == [*expected, ("characters, all", "")]
    random, pixels, *trained = (float(cells[0]) for cells in rows.values())
    assert random < 70 < 90 < min(pixels, *trained)
    assert all(float(cell.split()[0]) > 90 for cells in list(rows.values())[1:] for cell in cells[2:])
    settings = {name: own[0] for name, own in study.trained.items()}
    assert settings["pixels-p5-round1"] == f"labels={tmp_path}/models/pixels-labels5.npy"
    assert settings["pixels-p5-round2"] == f"labels={tmp_path}/models/pixels-p5-round1-labels5.npy"
    assert settings["supervised"] == f"num_classes={CHARACTERS}"
    assert np.load(tmp_path / "models" / "pixels-labels5.npy").shape == (CHARACTERS * IMAGES, 5)


def test_the_first_network_knows_the_labels_of_some_characters(root, tmp_path):
    study = Study(root, tmp_path / "models", None, [], 0)
    titles = [cells[0] for cells in study.rows(1, 5)]
    assert titles[1] == f"characters, 5 of {CHARACTERS}"
    labels = np.load(tmp_path / "models" / "labels-of-5.npy")
    assert labels.shape == (CHARACTERS * IMAGES, 1)
    assert labels[:, 0].tolist() == [*np.repeat(range(5), IMAGES), *[-1] * (CHARACTERS - 5) * IMAGES]


def test_figures_of_known_labelings():
    a = np.array([0, 0, 1, 1])
    assert clusters.mutual_information(a, 1 - a) == pytest.approx(1)
    assert clusters.mutual_information(a, np.array([0, 1, 0, 1])) == pytest.approx(0, abs=1e-12)
    assert clusters.mutual_information(a, np.arange(4)) == pytest.approx(2 / 3)  # I = ln 2, H = ln 2 and ln 4
    assert clusters.purity(np.array([4, 4, 4, 2, 2]), np.array([1, 1, 0, 0, 3])) == pytest.approx(3 / 5)
    angles = np.array([0.0, 0.1, 0.2, 0.3, 2.0, 2.1, 2.2, 2.3, 0.15])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])  # the last one is wrong
    assert clusters.neighbors_accuracy(rows, labels) == pytest.approx(8 / 9)
