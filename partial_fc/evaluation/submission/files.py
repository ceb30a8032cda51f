"""The rules of the masked-face challenge on the files of a submission.

Shapes: H, W image size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from partial_fc.inference.model import find_model

from .rules import IMAGE_SIZE, MEGABYTE, Limits, Rule

CROP, PIXELS = "crop.txt", "pixel_norm.txt"
CROP_LINES, PIXEL_LINES = "left, top, right, bottom, width, height", "mean, deviation"
Number = TypeVar("Number", int, float)


class OwnPixels(NamedTuple):
    """`image_size` (H, W) that the model must take; `mean` and `deviation` of pixels, None where the model decides."""

    image_size: tuple[int, int] = IMAGE_SIZE
    mean: float | None = None
    deviation: float | None = None


def check_files(folder: str, limits: Limits) -> tuple[list[Rule], str | None]:
    """The rules on the folder and the size of the model, and the path of the model if there is one.

    Raises:
        OSError: the folder is not there, or cannot be read.
    """
    if not os.path.exists(folder):
        raise FileNotFoundError(f"{folder} is not there: name the folder of a submission")
    if not os.path.isdir(folder):
        return [Rule("folder", False, f"{folder} is a file: a submission is a folder that holds an .onnx file")], None
    rules = [Rule("folder", True, folder)]
    try:
        path = find_model(folder)
    except FileNotFoundError as error:
        return [*rules, Rule("file", False, str(error))], None
    count = sum(name.endswith(".onnx") for name in os.listdir(folder))
    rules.append(Rule("file", True, os.path.basename(path) + (f", the last of {count} by name" if count > 1 else "")))
    size = os.path.getsize(path) / MEGABYTE
    rules.append(Rule("size", size <= limits.megabytes, f"{size:.1f} MB, at most {limits.megabytes:g}"))
    return rules, path


def check_own_pixels(folder: str) -> tuple[list[Rule], OwnPixels]:
    """The rules on crop.txt and pixel_norm.txt, and what they say; a file that is wrong counts as none."""
    own = OwnPixels()
    crop = _read(folder, CROP, CROP_LINES, int, _check_crop)
    if crop.numbers:
        own = own._replace(image_size=(crop.numbers[5], crop.numbers[4]))
    pixels = _read(folder, PIXELS, PIXEL_LINES, float, _check_pixels)
    if pixels.numbers:
        own = own._replace(mean=pixels.numbers[0], deviation=pixels.numbers[1])
    return [crop.rule, pixels.rule], own


class _Content(NamedTuple):
    rule: Rule
    numbers: list


def _read(
    folder: str, name: str, meaning: str, kind: Callable[[str], Number], check: Callable[[list[Number]], None]
) -> _Content:
    """The numbers of one of the files, one a line; none where it is absent or wrong."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return _Content(Rule(name, True, "none"), [])
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    try:
        wanted = meaning.count(",") + 1
        if len(lines) != wanted:
            raise ValueError(f"has {len(lines)} lines, not {wanted}")
        numbers = [_number(line, place, kind) for place, line in enumerate(lines, 1)]
        check(numbers)
    except ValueError as error:
        return _Content(Rule(name, False, f"{error}; its lines are {meaning}"), [])
    return _Content(Rule(name, True, ", ".join(f"{number:g}" for number in numbers)), numbers)


def _number(line: str, place: int, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(line)
    except ValueError:
        raise ValueError(f"line {place} is {line!r}, no number") from None


def _check_crop(numbers: list[int]) -> None:
    left, top, right, bottom, width, height = numbers
    if not (0 <= left < right and 0 <= top < bottom and width > 0 and height > 0):
        raise ValueError(f"{numbers} is no part of an image and no size")


def _check_pixels(numbers: list[float]) -> None:
    if not all(map(math.isfinite, numbers)) or numbers[1] == 0:
        raise ValueError(f"{numbers} cannot normalise pixels")
