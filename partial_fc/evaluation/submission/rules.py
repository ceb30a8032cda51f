"""The masked-face challenge (ICCV 2021, InsightFace track): its limits, and what a checked rule is.

Figures from insightface/challenges/iccv21-mfr/README.md and from the check that its server ran (onnx_helper.py).
"""

from __future__ import annotations

from typing import NamedTuple

MEGABYTE = 1 << 20
MEANT_FOR = "a Tesla V100 with onnxruntime-gpu 1.6"  # the limits of time
IMAGE_SIZE = (112, 112)


class Limits(NamedTuple):
    """Of a track: megabytes of 2^20 bytes of the file, numbers of an embedding, milliseconds of one face.

    `own_pixels`: whether the folder may say in crop.txt and pixel_norm.txt how images are cropped and normalised.
    """

    megabytes: float
    features: int
    milliseconds: float
    own_pixels: bool = False


TRACKS = {
    "ms1m": Limits(1024, 512, 10),
    "glint": Limits(1024, 1024, 20),
    "cfat": Limits(1024, 512, 15, own_pixels=True),
    "unconstrained": Limits(1024, 1024, 30),
}


class Rule(NamedTuple):
    """A rule that was checked: `figure` says what was found, and what is allowed."""

    name: str
    passed: bool
    figure: str
