"""Draws a character in a typeface as a small image with random variations."""

from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from PIL import ImageFont

from partial_fc.data.synthetic.identity import random_stream

from .typefaces import CHARACTERS, Typeface

SIZE = 64  # side of an image in pixels
EM = 52  # size of an em in pixels
OPEN_TYPEFACES = 512  # more than the set has


class Drawing(NamedTuple):
    """A character in a typeface."""

    code: int  # code point
    typeface: Typeface
    number: int  # number of the image of this character, which selects the variation; -1 for none


def draw_variation(random: np.random.Generator) -> tuple:
    """Returns the random parameters of an image, see `draw`."""
    scale, turn, slant = np.array([0.85, -0.1, -0.12]) + random.random(3) * [0.23, 0.2, 0.24]
    linear = scale * np.array([[np.cos(turn), slant - np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    shift = 6 * random.random(2) - 3
    ink, paper, blur, strength, quality = np.array([0, 160, 0.2, 0, 60]) + random.random(5) * [90, 95, 0.8, 15, 36]
    return linear, shift, ink, paper, blur, strength, int(quality)


def draw(seed: int, drawing: Drawing) -> bytes:
    """Returns a gray image of SIZE x SIZE pixels as a JPEG file with three channels.

    Raises:
        ValueError: the typeface draws nothing.
    """
    random = random_stream(seed, drawing.code, drawing.number + 1)
    variation = draw_variation(random) if drawing.number >= 0 else (np.eye(2), np.zeros(2), 0, 255, 0, 0, 95)
    # An affine map, gray levels, and effects of a camera.
    linear, shift, dark, paper, blur, strength, quality = variation
    mask = _mask(drawing.typeface, chr(drawing.code))
    # Maps the center of the ink to the center of the image.
    middle = (np.array(mask.shape[::-1]) - 1) / 2
    target = (SIZE - 1) / 2 + shift
    matrix = np.column_stack([linear, target - linear @ middle])
    drawn = cv2.warpAffine(mask, matrix, (SIZE, SIZE), flags=cv2.INTER_LINEAR)
    ink: np.ndarray = drawn.astype(np.float64) / 255
    if blur:
        ink = cv2.GaussianBlur(ink, (0, 0), blur)
    noise = strength * (2 * random.random(ink.shape) - 1)
    image = paper + (dark - paper) * ink + noise
    gray = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    image = cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def can_draw(typeface: Typeface, outlines: np.ndarray) -> bool:
    """Returns whether FreeType can draw the first character in the outlines (C,) uint64 of read_typefaces."""
    try:
        _mask(typeface, chr(CHARACTERS[np.flatnonzero(outlines)[0]]))
    except ValueError:
        return False
    return True


def _mask(typeface: Typeface, character: str) -> np.ndarray:
    """Returns the ink of a character, (h, w) uint8, without margins.

    Raises:
        ValueError: FreeType cannot draw the character, or draws nothing.
    """
    try:
        mask = _opened(typeface).getmask(character, mode="L")
    except OSError as error:
        raise ValueError(f"{typeface.path}: FreeType cannot draw U+{ord(character):04X}: {error}") from None
    box = mask.getbbox()
    if box is None:
        raise ValueError(f"{typeface.path} draws nothing for U+{ord(character):04X}")
    left, top, right, bottom = box
    return np.asarray(mask, np.uint8).reshape(mask.size[::-1])[top:bottom, left:right]


@lru_cache(OPEN_TYPEFACES)
def _opened(typeface: Typeface) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(typeface.path), EM, index=typeface.number, layout_engine=ImageFont.Layout.BASIC)
