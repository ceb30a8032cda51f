"""Limits of the masked-face challenge (ICCV 2021, InsightFace track), and the rules of a submission's files.

Sources: insightface/challenges/iccv21-mfr/README.md and the check of its server (onnx_helper.py).
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from partial_fc.utils.text import read_lines

MEGABYTE = 1 << 20
REFERENCE_DEVICE = "a Tesla V100 with onnxruntime-gpu 1.6"  # for which the time limits are meant
IMAGE_SIZE = (112, 112)  # H, W
CROP, PIXELS = "crop.txt", "pixel_norm.txt"
LARGEST = 1000  # maximum size of either file in bytes
CROP_LINES, PIXEL_LINES = "left, top, right, bottom, width, height", "mean, deviation"


class Limits(NamedTuple):
    """Limits of a track."""

    megabytes: float  # size of the file in units of 2^20 bytes
    features: int  # dimension of the embeddings
    milliseconds: float  # time per face
    custom_pixels: bool = False  # whether crop.txt and pixel_norm.txt may define the cropping and normalization


TRACKS = {
    "ms1m": Limits(1024, 512, 10),
    "glint": Limits(1024, 1024, 20),
    "cfat": Limits(1024, 512, 15, custom_pixels=True),
    "unconstrained": Limits(1024, 1024, 30),
}


class Rule(NamedTuple):
    """Outcome of a rule; ``result`` describes the measured value and the limit."""

    name: str
    passed: bool
    result: str


class PixelSettings(NamedTuple):
    """Image size (H, W) of a model; mean and divisor of its pixels, None to derive them from the model's nodes."""

    image_size: tuple[int, int] = IMAGE_SIZE
    norm: tuple[float, float] | None = None


def check_pixel_files(folder: str) -> tuple[list[Rule], PixelSettings]:
    """Checks crop.txt and pixel_norm.txt; returns the rules and the settings. An invalid file changes no settings."""
    crop, sides = _read(folder, CROP, CROP_LINES, int, _is_crop)
    pixels, norm = _read(folder, PIXELS, PIXEL_LINES, float, lambda n: max(map(abs, n)) < 1e6 and abs(n[1]) > 1e-6)
    image_size = (sides[5], sides[4]) if sides else IMAGE_SIZE
    return [crop, pixels], PixelSettings(image_size, (norm[0], norm[1]) if norm else None)


def _read(
    folder: str, name: str, meaning: str, kind: Callable[[str], float], is_valid: Callable[[list], bool]
) -> tuple[Rule, list]:
    """Reads the numbers in a file, one per line; returns none if the file is absent or invalid."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return Rule(name, True, "none"), []
    try:
        lines = list(read_lines(path)) if os.path.getsize(path) <= LARGEST else []
    except ValueError as error:
        return Rule(name, False, str(error)), []
    try:
        numbers = [kind(line) for line in lines]
    except ValueError:
        numbers = []
    if len(numbers) != meaning.count(",") + 1 or not is_valid(numbers):
        return Rule(name, False, f"{lines} are not valid; expected lines: {meaning}"), []
    return Rule(name, True, ", ".join(f"{number:g}" for number in numbers)), numbers


def _is_crop(numbers: list[int]) -> bool:
    left, top, right, bottom, width, height = numbers
    return 0 <= left < right and 0 <= top < bottom and width > 0 and height > 0
