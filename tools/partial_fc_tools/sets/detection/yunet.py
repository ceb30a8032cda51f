"""YuNet (Wu et al., Machine Intelligence Research 20, 2023) by OpenCV, from the files of its model zoo."""

import cv2
import numpy as np

from .detector import Face

SCORE, OVERLAP, MOST = 0.6, 0.3, 5000  # as in the model zoo's program


class YuNet:
    """A model of YuNet. Raises ValueError if OpenCV cannot read it."""

    def __init__(self, path: str):
        try:
            self.net = cv2.FaceDetectorYN.create(path, "", (320, 320), SCORE, OVERLAP, MOST)
        except cv2.error as error:
            reason = " ".join(error.err.split())
            raise ValueError(f"{path}: OpenCV {cv2.__version__} cannot read this as YuNet: {reason}") from None

    def detect(self, image: np.ndarray) -> list[Face]:
        """Returns the faces in an image (H, W, 3) uint8 RGB."""
        self.net.setInputSize(image.shape[1::-1])
        _, rows = self.net.detect(np.ascontiguousarray(image[:, :, ::-1]))
        # Its "right eye" is the person's right, which is on the left of the image and comes first in ARCFACE, too.
        return [
            Face(float(row[14]), np.concatenate([row[:2], row[:2] + row[2:4]]), row[4:14].reshape(5, 2))
            for row in (() if rows is None else rows.astype(np.float64))
        ]
