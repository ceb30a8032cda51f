"""The program of the margin for rare classes, with a tiny model in place of trainings."""

import numpy as np
import pytest

from examples.glyphs import thinned
from examples.glyphs.evaluate import embed
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.export.model import FaceModel
from partial_fc.utils.cli import run_module
from patterns import photos_of
from tiny_onnx import TinyModel

CHARACTERS, IMAGES, SIZE = 25, 20, 64


def test_the_first_characters_keep_more_images_and_the_last_four_are_tested():
    labels = np.repeat(np.arange(CHARACTERS), IMAGES)
    kept, tested = thinned.thinned(labels)
    counts = np.bincount(kept[kept >= 0])
    assert (counts[0], counts[5], counts[-1]) == (16, 8, 2) and (np.diff(counts) <= 0).all()
    assert kept.shape == (CHARACTERS * IMAGES, 1) and not (tested & (kept[:, 0] >= 0)).any()
    assert np.flatnonzero(tested[:IMAGES]).tolist() == [16, 17, 18, 19] and tested.sum() == 4 * CHARACTERS
    with pytest.raises(ValueError, match="a character has 19 images: write a set with --images 20"):
        thinned.thinned(labels[1:])


def test_the_table_has_frequent_and_rare_characters_apart(tmp_path, capsys):
    random = np.random.default_rng(0)
    patterns = random.integers(60, 196, (CHARACTERS, 8, 8, 3))
    write_face_set(tmp_path / "set", photos_of(patterns, IMAGES, 5, random, SIZE), (SIZE, SIZE))
    for number in range(len(thinned.MARGINS)):
        output = tmp_path / "models" / f"margin{number}-seed0"
        checkpoint = output / "checkpoints" / "step-0000000001"
        checkpoint.mkdir(parents=True)
        TinyModel(size=(SIZE, SIZE), features=64).write(output / "backbone.onnx")
        (output / "summary.json").touch()
        records = FaceRecords(tmp_path / "set" / "train.rec")
        firsts = [records.read_image(position)[0] for position in range(0, CHARACTERS * IMAGES, IMAGES)]
        centers = embed(FaceModel.open(output), firsts, "centers")
        if number == 3:  # no rare character is found
            centers[10:] = -centers[10:]
        np.save(checkpoint / "centers-00000.npy", 3 * centers)
    words = ["--root", str(tmp_path / "set"), "--folder", str(tmp_path / "models"), "--seeds", "0"]
    assert run_module("examples.glyphs.thinned", "thinned", words) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0] == ["margin", *(f"{group} images" for group in thinned.GROUPS)]
    assert [row[0] for row in rows[1:]] == list(thinned.MARGINS)
    assert all(min(map(float, row[1:])) > 90 for row in rows[1:4])
    assert float(rows[4][1]) > 90 and rows[4][3] == "0.00"
