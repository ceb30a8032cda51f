"""insightface reads our ONNX files; run with pip install insightface, which our environments do not contain."""

import cv2
import numpy as np
import onnx
import pytest
import torch

import tiny_detectors
from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc_tools.export.smaller import to_half, to_int8
from partial_fc_torch.backbones import get_model
from partial_fc_torch.onnx_export import OnnxExport
from tiny_detectors import SIDE, STRIDE
from tiny_onnx import TinyModel

model_zoo = pytest.importorskip("insightface.model_zoo", reason="pip install insightface")
CPU = {"providers": ["CPUExecutionProvider"]}
NO_FACES = np.empty((0, 3, 112, 112), np.uint8)


@pytest.fixture(params=["of PyTorch", "of MXNet"])
def backbone(request, tmp_path):
    """A file of a training with PyTorch, and one that takes pixels in 0..255, as MXNet's files."""
    path = tmp_path / "backbone.onnx"
    if request.param == "of MXNet":
        TinyModel().write(path)
    else:
        torch.manual_seed(0)
        path.write_bytes(OnnxExport(get_model("small", num_features=16).eval(), NO_FACES)(0))
    return str(path)


def test_get_model_gives_our_embeddings(backbone):
    faces = random_faces((112, 112), 3)
    model = model_zoo.get_model(backbone, **CPU)
    assert model.taskname == "recognition" and model.input_size == (112, 112)
    found = model.get_feat([face[:, :, ::-1] for face in faces])
    np.testing.assert_allclose(found, FaceModel(backbone, "ours").embed(faces), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["half", "int8"])
def test_get_model_takes_smaller_files(kind, backbone, tmp_path):
    faces = random_faces((112, 112), 8)
    with open(backbone, "rb") as file:
        content = file.read()
    pixels = FaceModel(content, "ours").pixels(faces)
    small = tmp_path / "small.onnx"
    small.write_bytes(to_half(content) if kind == "half" else to_int8(content, np.split(pixels, 2)))
    found = model_zoo.get_model(str(small), **CPU).get_feat([face[:, :, ::-1] for face in faces])
    np.testing.assert_allclose(found, FaceModel(str(small), "ours").embed(faces), rtol=1e-4, atol=1e-4)


def test_face_analysis_takes_it_for_recognition(backbone, tmp_path):
    from insightface.app import FaceAnalysis
    from insightface.utils.face_align import norm_crop

    detector = onnx.load(tiny_detectors.scrfd(tmp_path / "a_detector.onnx"))
    outputs = sorted(
        detector.graph.output, key=lambda each: ("score", "box", "landmarks").index(each.name.rstrip("0123456789"))
    )
    del detector.graph.output[:]
    detector.graph.output.extend(outputs)
    onnx.save(detector, tmp_path / "a_detector.onnx")
    image = cv2.resize(np.random.default_rng(0).integers(0, 120, (8, 8, 3), np.uint8), (SIDE, SIDE))
    image[16 : 16 + STRIDE, 32 : 32 + STRIDE, 2] = 255  # BGR
    app = FaceAnalysis(str(tmp_path), **CPU)
    app.prepare(ctx_id=-1, det_size=(SIDE, SIDE))
    (face,) = app.get(image)
    aligned = norm_crop(image, face.kps)[None, :, :, ::-1]
    expected = FaceModel(backbone, "ours").embed(np.ascontiguousarray(aligned))[0]
    np.testing.assert_allclose(face.embedding, expected, rtol=1e-4, atol=1e-4)
