"""FaceModel with weights in two files, and models that it refuses; test_embed.py has the others."""

import numpy as np
import pytest
from onnx import TensorProto

from partial_fc.inference.distances import squared_distances
from partial_fc.inference.model import FaceModel
from partial_fc.inference.parity import random_faces
from tiny_onnx import TinyModel

FACES = random_faces((112, 112), 5)


def test_weights_in_a_second_file(tmp_path):
    path = TinyModel().write(tmp_path / "model.onnx")
    expected = FaceModel.open(path).embed(FACES)
    TinyModel().write_in_two(tmp_path / "model.onnx")
    np.testing.assert_allclose(FaceModel.open(path).embed(FACES), expected, rtol=1e-6)


def test_the_folder_of_a_training_stands_for_its_backbone(tmp_path):
    for name in ("backbone_ema", "backbone"):
        TinyModel().write(tmp_path / f"{name}.onnx")
    assert FaceModel.open(tmp_path).name == str(tmp_path / "backbone.onnx")
    TinyModel().write(tmp_path / "c.onnx")
    (tmp_path / "backbone.onnx").unlink()
    assert FaceModel.open(tmp_path).name == str(tmp_path / "c.onnx")


def test_files_that_are_not_face_models_are_refused(tmp_path):
    model = TinyModel()
    model.inputs[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(ValueError, match="cannot load this as an ONNX model|maps tensor.double. to"):
        FaceModel.open(model.write(tmp_path / "double.onnx"))
    with pytest.raises(ValueError, match=r"takes faces of \(112, 112\) pixels, not \(96, 96, 3\)"):
        FaceModel.open(TinyModel().write(tmp_path / "model.onnx")).embed(random_faces((96, 96)))


def test_distances():
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    others = np.array([[2.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(squared_distances(rows, others), [0, 4, 0, 1], atol=1e-12)
