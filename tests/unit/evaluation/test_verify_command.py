"""partial-fc verify: models on validation pairs without a training."""

import json
import zipfile

import cv2
import numpy as np
import pytest

from command_line import exit_code
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.verification import verify
from tiny_onnx import TinyModel

PAIRS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models and a set of pairs: faces of 8 identities, every second pair of one."""
    place = tmp_path_factory.mktemp("verify")
    people = [(pair % 8, (pair + pair % 2) % 8) for pair in range(PAIRS)]
    images = [
        encode_face(1, person, 2 * pair + side) for pair, both in enumerate(people) for side, person in enumerate(both)
    ]
    write_pairs(place / "set.bin", images, [a == b for a, b in people])
    TinyModel().write(place / "a.onnx")
    TinyModel(seed=4, features=4).write(place / "b.onnx")
    return place


def test_figures_are_those_of_the_definition(place, capsys):
    assert exit_code("verify", place / "a.onnx", place / "b.onnx", place / "set.bin", "--out", place / "all") == 0
    first, second = json.loads((place / "all.json").read_text())
    people = [(pair % 8, (pair + pair % 2) % 8) for pair in range(PAIRS)]
    decoded = [
        cv2.imdecode(np.frombuffer(encode_face(1, person, 2 * pair + side), np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        for pair, both in enumerate(people)
        for side, person in enumerate(both)
    ]
    unit = np.stack([TinyModel().slow_unit(image, True) for image in decoded])
    expected = verify(unit, [a == b for a, b in people])
    assert first["accuracy"] == expected.accuracy and first["tar_at_far"] == pytest.approx(expected.tar_at_far)
    assert second["accuracy"] != first["accuracy"]
    out = capsys.readouterr().out
    assert f"{expected.accuracy:.5f}" in out and len(out.splitlines()) == 3
    picture = cv2.imread(str(place / "all_roc.png"))
    assert picture.shape == (720, 960, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 20


def test_what_is_missing_is_said_before_a_model_runs(place, capsys):
    assert exit_code("verify", place / "a.onnx") == 2
    assert "one set of pairs (.bin) or more" in capsys.readouterr().err
    with zipfile.ZipFile(place / "pytorch_model.bin", "w") as file:  # the container of torch.save
        file.writestr("archive/data.pkl", b"")
    assert exit_code("verify", place / "pytorch_model.bin", place / "set.bin") == 2
    assert "pytorch_model.bin; rename weights to .pt" in capsys.readouterr().err
    (place / "there.json").touch()
    assert exit_code("verify", place / "a.onnx", place / "set.bin", "--out", place / "there") == 2
    assert "already exists" in capsys.readouterr().err
