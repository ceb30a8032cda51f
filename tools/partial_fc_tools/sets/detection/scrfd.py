"""SCRFD (arXiv 2105.04714) in the ONNX files of insightface that have landmarks, such as det_10g.onnx.

The outputs for each stride are a score, the distances from a cell to the sides of the box, and the offsets of the
landmarks, both in units of the stride. Rows are the cells line by line, each with its A anchors in succession.

Shapes: H, W image size; N anchors of a stride.
"""

import cv2
import numpy as np

from partial_fc.export.model import open_session, run_session

from .detector import Face

SIZE = 640  # image side for a model that takes any size, as in insightface
MEAN, SCALE = 127.5, 1 / 128
FINEST = 8  # stride of the first level; each further level doubles it
SCORE, OVERLAP = 0.5, 0.4  # as in insightface
WIDTHS = (1, 4, 10)  # numbers in a row of the outputs: score, box, landmarks


class Scrfd:
    """A model of SCRFD. Raises ValueError for a file without landmarks, or of another model."""

    def __init__(self, path: str):
        self.path = path
        self.session, _ = open_session(path, path)
        shape = self.session.get_inputs()[0].shape
        if len(shape) != 4:
            raise ValueError(f"{path} takes input of shape {shape}, expected images (1, 3, H, W) as SCRFD does")
        self.size = tuple(side if isinstance(side, int) and side > 0 else SIZE for side in shape[2:])
        self.levels(np.zeros((*self.size, 3), np.uint8))  # refuses another model before photos are read

    def detect(self, image: np.ndarray) -> list[Face]:
        """Returns the faces in an image (H, W, 3) uint8 RGB."""
        scale = min(self.size[0] / image.shape[0], self.size[1] / image.shape[1])
        height, width = (max(1, round(scale * side)) for side in image.shape[:2])
        canvas = np.zeros((*self.size, 3), np.uint8)
        canvas[:height, :width] = cv2.resize(image, (width, height))
        rows = np.concatenate(
            [decode(level, FINEST << step, self.size) for step, level in enumerate(self.levels(canvas))]
        )
        # Scaling keeps the corner of the first pixel, (-0.5, -0.5), not its center, (0, 0).
        stretch = np.array([image.shape[1] / width, image.shape[0] / height])
        points = ((rows[:, 1:].reshape(-1, 7, 2) + 0.5) * stretch - 0.5).astype(np.float64)
        boxes = np.concatenate([points[:, 0], points[:, 1] - points[:, 0]], axis=1)
        kept = cv2.dnn.NMSBoxes(boxes.tolist(), rows[:, 0].tolist(), SCORE, OVERLAP)
        return [Face(float(rows[row, 0]), points[row, :2].ravel(), points[row, 2:]) for row in np.ravel(kept).tolist()]

    def levels(self, canvas: np.ndarray) -> list[list[np.ndarray]]:
        """Runs the model on an image of its size; returns score, box and landmarks per stride, the finest first."""
        data = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32)
        feed = {self.session.get_inputs()[0].name: (data - np.float32(MEAN)) * np.float32(SCALE)}
        outputs = run_session(self.session, feed, self.path)
        kinds = [
            sorted((each.reshape(-1, width) for each in outputs if each.shape[-1] == width), key=len, reverse=True)
            for width in WIDTHS
        ]
        rows = [[len(each) for each in kind] for kind in kinds]
        if not rows[0] or rows != [rows[0]] * 3:
            shapes = ", ".join(str(each.shape) for each in outputs)
            raise ValueError(
                f"{self.path} has outputs of shapes {shapes}, expected score (N, 1), box (N, 4) and landmarks (N, 10) "
                "of each stride, as SCRFD with landmarks has: name another file"
            )
        return [list(level) for level in zip(*kinds)]


def decode(level: list[np.ndarray], stride: int, size: tuple[int, ...]) -> np.ndarray:
    """Returns (n, 15) for the rows above SCORE: score, box corners and landmarks, in pixels of an image ``size``."""
    scores, boxes, landmarks = level
    cells = (size[0] // stride) * (size[1] // stride)
    rows = np.flatnonzero(scores[:, 0] >= SCORE)
    y, x = np.divmod(rows // (len(scores) // cells), size[1] // stride)
    centers = np.stack([x, y], axis=1)
    offsets = np.concatenate([-boxes[rows, :2], boxes[rows, 2:], landmarks[rows]], axis=1).reshape(-1, 7, 2)
    points = stride * (centers[:, None] + offsets)
    return np.concatenate([scores[rows], points.reshape(-1, 14)], axis=1)
