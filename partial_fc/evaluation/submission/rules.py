"""Limits of the masked-face challenge (ICCV 2021, InsightFace track), and the result of a rule.

Sources: insightface/challenges/iccv21-mfr/README.md and the check of its server (onnx_helper.py).
"""

from __future__ import annotations

from typing import NamedTuple

MEGABYTE = 1 << 20
REFERENCE_DEVICE = "a Tesla V100 with onnxruntime-gpu 1.6"  # of the time limits
IMAGE_SIZE = (112, 112)


class Limits(NamedTuple):
    """Limits of a track.

    Attributes:
        megabytes: Size of the file in units of 2^20 bytes.
        features: Dimension of an embedding.
        milliseconds: Time of one face.
        custom_pixels: Whether crop.txt and pixel_norm.txt may define how images are cropped and normalized.
    """

    megabytes: float
    features: int
    milliseconds: float
    custom_pixels: bool = False


TRACKS = {
    "ms1m": Limits(1024, 512, 10),
    "glint": Limits(1024, 1024, 20),
    "cfat": Limits(1024, 512, 15, custom_pixels=True),
    "unconstrained": Limits(1024, 1024, 30),
}


class Rule(NamedTuple):
    """Result of a rule; ``figure`` gives the measured value and the limit."""

    name: str
    passed: bool
    figure: str
