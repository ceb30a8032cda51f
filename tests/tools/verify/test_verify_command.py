"""partial-fc verify: models on validation pairs without a training."""

import itertools
import json
import shutil
import zipfile

import cv2
import numpy as np
import pytest

from command_line import exit_code
from partial_fc.data.pairs_bin import read_pairs, write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.verification import verify
from partial_fc_tools.verify.command import verify_models
from partial_fc_tools.verify.roc_picture import draw_roc
from tiny_onnx import TinyModel

PEOPLE = [(pair % 8, (pair + pair % 2) % 8) for pair in range(21)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models and a set of pairs: faces of 8 identities, every second pair of one."""
    place = tmp_path_factory.mktemp("verify")
    images = [encode_face(1, person, number) for number, person in enumerate(itertools.chain(*PEOPLE))]
    write_pairs(place / "set.bin", images, [a == b for a, b in PEOPLE])
    TinyModel().write(place / "a.onnx")
    TinyModel(seed=4, features=4).write(place / "b.onnx")
    return place


def test_figures_are_those_of_the_definition(place, capsys):
    assert exit_code("verify", place / "a.onnx", place / "b.onnx", place / "set.bin", "--out", place / "all") == 0
    first, second = json.loads((place / "all.json").read_text())
    images, issame = read_pairs(place / "set.bin")
    decoded = [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1] for image in images]
    unit = np.stack([TinyModel().slow_unit(image, True) for image in decoded])
    expected = verify(unit, issame)
    assert {name: first[name] for name in expected._fields} == pytest.approx(expected._asdict())
    added = [TinyModel().slow(image) + TinyModel().slow(image[:, ::-1]) for image in decoded]
    assert first["xnorm"] == pytest.approx(np.linalg.norm(added, axis=1).mean() / 2, rel=1e-4)
    other = verify(np.stack([TinyModel(seed=4, features=4).slow_unit(image, True) for image in decoded]), issame)
    assert {name: second[name] for name in other._fields} == pytest.approx(other._asdict()) != expected._asdict()
    out, warned = capsys.readouterr()
    assert f"{expected.accuracy:.5f}" in out and len(out.splitlines()) == 3
    assert "set.bin: too few impostor pairs for FAR 0.001: 10 instead of at least 1,000" in warned
    assert exit_code("verify", place / "a.onnx", place / "b.onnx", place / "set.bin", "--json") == 0
    assert capsys.readouterr().out == (place / "all.json").read_text()
    picture = cv2.imread(str(place / "all_roc.png"))
    assert picture.shape == (720, 960, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("trained, options", [("True", ["--no-flip"]), ("False", [])])
def test_mirror_images_may_be_left_out(trained, options, place, tmp_path):
    """By an option, or because the model was trained without."""
    model = TinyModel()
    model.metadata["rand_mirror"] = trained
    model.write(tmp_path / "model.onnx")
    assert exit_code("verify", tmp_path / "model.onnx", place / "set.bin", "--out", tmp_path / "all", *options) == 0
    ((found,), images) = json.loads((tmp_path / "all.json").read_text()), read_pairs(place / "set.bin")[0]
    decoded = [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1] for image in images]
    lengths = [np.linalg.norm(model.slow(image)) for image in decoded]
    assert found["xnorm"] == pytest.approx(np.mean(lengths), rel=1e-4)


def test_the_figures_do_not_depend_on_the_batch(place):
    """The set has 42 images."""
    arguments = [str(place / "a.onnx")], [str(place / "set.bin")]
    (expected,), _ = verify_models(*arguments, 64, True)
    for batch_size in (2, 41, 42, 43):
        assert verify_models(*arguments, batch_size, True)[0] == [pytest.approx(expected)]


def test_sets_of_one_name_have_curves_of_their_own_and_all_have_labels(place, tmp_path):
    shutil.copy(place / "set.bin", tmp_path)
    _, curves = verify_models([str(place / "a.onnx")], [str(place / "set.bin"), str(tmp_path / "set.bin")], 8, False)
    assert len(curves) == 2
    pictures = [tmp_path / "_.png", tmp_path / "without.png"]
    for picture, prefix in zip(pictures, ("_", "")):  # Matplotlib hides labels that begin with "_"
        draw_roc({f"{prefix}{name}": curve for name, curve in zip("ab", curves.values())}, 1e-4, "", [str(picture)])
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_sets_that_cannot_be_verified_are_named(place, tmp_path, capsys):
    images, issame = read_pairs(place / "set.bin")
    write_pairs(tmp_path / "one.bin", images, issame | True)
    assert exit_code("verify", place / "a.onnx", tmp_path / "one.bin") == 2
    assert "one.bin: verification needs" in capsys.readouterr().err
    images[7] = cv2.imencode(".png", np.zeros((112, 112, 3), np.uint8))[1].tobytes()
    write_pairs(tmp_path / "set.bin", images, issame)
    model = TinyModel()
    model.refuse_black("Sqrt")
    model.write(tmp_path / "model.onnx")
    assert exit_code("verify", tmp_path / "model.onnx", tmp_path / "set.bin", "--batch-size", 3) == 2
    error = capsys.readouterr().err
    assert "model.onnx: image 7 of " in error and "not finite" in error


def test_what_is_missing_is_said_before_a_model_runs(place, capsys):
    with zipfile.ZipFile(place / "pytorch_model.bin", "w") as file:  # the container of torch.save
        file.writestr("archive/data.pkl", b"")
    for words, message in (
        ([place / "a.onnx"], "one set of pairs (.bin)"),
        ([place / "pytorch_model.bin", place / "set.bin"], "rename weights to .pt"),
    ):
        assert exit_code("verify", *words) == 2
        assert message in capsys.readouterr().err
