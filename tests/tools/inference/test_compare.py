"""partial-fc compare: output against a slow reference, and precedence of thresholds."""

import json

import cv2
import numpy as np
import pytest

from partial_fc.data.synthetic.draw import draw_face
from partial_fc_tools.__main__ import main
from tiny_onnx import TinyModel


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Lossless images of two persons, and a model without a threshold."""
    monkeypatch.chdir(tmp_path)
    for name, (person, image) in {"a.png": (0, 0), "b.png": (1, 0)}.items():
        cv2.imwrite(name, draw_face(2, person, image)[:, :, ::-1])
    TinyModel().write(tmp_path / "backbone.onnx")
    return tmp_path


def with_metadata(place, **metadata):
    model = TinyModel()
    model.metadata = metadata
    model.write(place / "backbone.onnx")


def slow_distance(mirrored=True):
    first, second = (TinyModel().slow_unit(draw_face(2, person, 0), mirrored) for person in (0, 1))
    return np.sum((first - second) ** 2), first @ second


def run(*arguments):
    return main(["compare", "--model", "backbone.onnx", *arguments])


@pytest.mark.parametrize(
    "options, metadata, mirrored",
    [([], {}, True), (["--no-flip"], {}, False), ([], {"rand_mirror": "False"}, False)],
)
def test_with_and_without_mirror_images(place, capsys, options, metadata, mirrored):
    with_metadata(place, **metadata)
    assert run("a.png", "b.png", *options) == 0
    distance, similarity = slow_distance(mirrored)
    assert capsys.readouterr().out == f"similarity        {similarity:.4f}\nsquared distance  {distance:.4f}\n"
    assert abs(distance - slow_distance(not mirrored)[0]) > 1e-3


def test_threshold_from_the_metadata(place, capsys):
    with_metadata(place, verification_threshold="3.9", verification_set="lfw")
    assert run("a.png", "b.png") == 0
    assert "same person: the distance is below 3.9 (the model's, measured on lfw)" in capsys.readouterr().out
    assert run("a.png", "b.png", "--threshold", "1e-6") == 0  # the option takes precedence
    assert "different people: the distance is not below 1e-06 (from --threshold)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "metadata, words",
    [
        ({"dataset": "ms1mv3", "task": "faces"}, "different people"),
        ({"dataset": "glyphs", "task": "faces"}, "different classes"),
        ({"dataset": "demo", "task": "mine:Birds"}, "different classes"),  # dataset is the default's
        ({"dataset": "own"}, "different classes"),
    ],
)
def test_the_verdict_has_the_words_of_the_set(place, capsys, metadata, words):
    with_metadata(place, **metadata)
    assert run("a.png", "b.png", "--threshold", "1e-6") == 0
    assert f"verdict           {words}: the distance" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["high", "", "nan", "0", "4.1"])
def test_invalid_thresholds_are_refused(place, capsys, text):
    with_metadata(place, verification_threshold=text)
    assert run("a.png", "b.png") == 2
    error = capsys.readouterr().err
    assert "metadata key verification_threshold" in error and "give --threshold" in error and repr(text) in error
    with pytest.raises(SystemExit) as ended:
        run("a.png", "b.png", "--threshold", text)
    assert ended.value.code == 2


def test_unusable_images_are_refused(place, capsys):
    cv2.imwrite("large.png", np.zeros((224, 200, 3), np.uint8))
    (place / "text.jpg").write_text("no image")
    for name, message in {"absent.jpg": "No such file", "text.jpg": "decoded", "large.png": "224x200"}.items():
        assert run("a.png", name) == 2
        error = capsys.readouterr().err
        assert name in error and message in error
    assert run("a.png", "large.png", "--resize") == 0


def test_json_has_the_figures_and_the_verdict(place, capsys):
    assert run("a.png", "b.png", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    distance, similarity = slow_distance()
    assert (figures["squared_distance"], figures["similarity"]) == pytest.approx((distance, similarity), abs=1e-5)
    assert (figures["threshold"], figures["same"]) == (None, None)
    assert run("a.png", "b.png", "--json", "--threshold", "4") == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["threshold"], figures["threshold_is"], figures["same"]) == (4.0, "from --threshold", True)


def test_embeddings_are_compared_if_they_are_of_the_same_model(place, capsys):
    (place / "one").mkdir()
    (place / "b.png").rename(place / "one" / "b.png")
    assert main(["embed", "one", "--model", "backbone.onnx", "--out", "b"]) == 0
    capsys.readouterr()
    assert run("a.png", "b.npy") == 0
    assert f"squared distance  {slow_distance()[0]:.4f}\n" in capsys.readouterr().out
    assert run("a.png", "b.npy", "--no-flip") == 2 and "b.npy was made with mirror images" in capsys.readouterr().err
    TinyModel(seed=4).write(place / "backbone.onnx")
    assert run("a.png", "b.npy") == 2 and "b.npy was made with another model file" in capsys.readouterr().err
    (place / "b.json").unlink()  # as written by an earlier version
    TinyModel(features=4).write(place / "backbone.onnx")
    assert run("a.png", "b.npy") == 2 and "have embeddings of 4 and" in capsys.readouterr().err
    assert main(["embed", ".", "--model", "backbone.onnx", "--out", "two"]) == 0
    capsys.readouterr()
    assert run("a.png", "two") == 2
    assert run("a.png", "two.npy") == 2 and "two.npy holds 2 embeddings, but compare takes" in capsys.readouterr().err
