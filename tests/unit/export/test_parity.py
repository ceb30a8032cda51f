"""The comparison of an exported file with its framework."""

import numpy as np
import pytest
from test_inference_model import center

from partial_fc.export.parity import RANDOM_FACES, check_export, check_form, random_faces
from tiny_onnx import TinyModel

SIDE = 112
NO_FACES = np.empty((0, SIDE, SIDE, 3), np.uint8)


def content(folder, **options):
    with open(TinyModel(**options).write(folder / "model.onnx"), "rb") as file:
        return file.read()


def slow(faces):
    return np.stack([TinyModel().slow(face) for face in faces])


@pytest.mark.parametrize("raw_pixels", [True, False])
def test_raw_and_normalized_pixels_are_distinguished(tmp_path, raw_pixels):
    file = content(tmp_path, normalizes=raw_pixels)
    check_export(file, NO_FACES, slow, "MXNet", raw_pixels)
    kind = "raw" if not raw_pixels else "normalized"
    with pytest.raises(ValueError, match=rf"the ONNX file of this backbone takes .*, expected .* and {kind} pixels"):
        check_form(file, raw_pixels=not raw_pixels)


def test_given_faces_are_compared_in_addition_to_random_images(tmp_path):
    """Here the framework differs for one of the given faces only."""
    faces = random_faces((SIDE, SIDE), RANDOM_FACES + 2)[RANDOM_FACES:]
    seen = []

    def embed(images):
        seen.append(len(images))
        return np.concatenate([slow(images[:-1]), -slow(images[-1:])])

    with pytest.raises(ValueError, match="other embeddings than the backbone it was exported from: cosine distance 2"):
        check_export(content(tmp_path), faces, embed, "MXNet")
    assert seen == [RANDOM_FACES + 2] * 2


def test_faces_are_also_compared_one_by_one(tmp_path):
    """Here both the file and the framework subtract the mean of the batch, like BatchNorm in training mode."""
    model = TinyModel()
    center(model)
    with open(model.write(tmp_path / "model.onnx"), "rb") as file:
        batch_dependent = file.read()
    with pytest.raises(ValueError, match="other embeddings than the backbone"):
        check_export(batch_dependent, NO_FACES, lambda faces: slow(faces) - slow(faces).mean(axis=0), "PyTorch")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_network_with_an_embedding_that_is_not_finite_gets_a_warning(number, tmp_path, caplog):
    def embed(faces):
        rows = slow(faces)
        rows[-1, -1] = number
        return rows

    file = content(tmp_path)
    check_export(file, NO_FACES, embed, "PyTorch")
    assert "is not compared: PyTorch's own embeddings are not finite" in caplog.text
    with pytest.raises(ValueError, match="is not a valid ONNX model"):
        check_export(file[:100], NO_FACES, embed, "PyTorch")


def test_a_chaotic_network_gets_a_warning(tmp_path, caplog):
    rng = np.random.default_rng(0)
    check_export(content(tmp_path), NO_FACES, lambda faces: rng.normal(size=(len(faces), 16)), "PyTorch")
    assert "but PyTorch's own embeddings change by" in caplog.text and "this network is chaotic" in caplog.text
