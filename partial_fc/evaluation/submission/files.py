"""Checks the files of a submission.

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


class PixelSettings(NamedTuple):
    """Size and normalization of the images that a model takes.

    Attributes:
        image_size: (H, W).
        mean: Subtracted from the pixels before the model; None if the names of the model's nodes decide.
        deviation: Divisor of the pixels before the model; None if the names of the model's nodes decide.
    """

    image_size: tuple[int, int] = IMAGE_SIZE
    mean: float | None = None
    deviation: float | None = None


def check_files(folder: str, limits: Limits) -> tuple[list[Rule], str | None]:
    """Checks the folder and the size of the model.

    Returns:
        The rules, and the path of the model if there is one.

    Raises:
        OSError: The folder does not exist or cannot be read.
    """
    if not os.path.exists(folder):
        raise FileNotFoundError(f"{folder} does not exist: give the folder of a submission")
    if not os.path.isdir(folder):
        return [Rule("folder", False, f"{folder} is a file: a submission is a folder with an .onnx file")], None
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


def check_pixel_files(folder: str) -> tuple[list[Rule], PixelSettings]:
    """Checks crop.txt and pixel_norm.txt; returns the rules and the settings. An invalid file is ignored."""
    settings = PixelSettings()
    crop = _read(folder, CROP, CROP_LINES, int, _check_crop)
    if crop.numbers:
        settings = settings._replace(image_size=(crop.numbers[5], crop.numbers[4]))
    pixels = _read(folder, PIXELS, PIXEL_LINES, float, _check_pixels)
    if pixels.numbers:
        settings = settings._replace(mean=pixels.numbers[0], deviation=pixels.numbers[1])
    return [crop.rule, pixels.rule], settings


class _Content(NamedTuple):
    rule: Rule
    numbers: list


def _read(
    folder: str, name: str, meaning: str, kind: Callable[[str], Number], check: Callable[[list[Number]], None]
) -> _Content:
    """Reads the numbers of a file, one per line; none if the file is absent or invalid."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return _Content(Rule(name, True, "none"), [])
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    try:
        expected = meaning.count(",") + 1
        if len(lines) != expected:
            raise ValueError(f"{len(lines)} lines instead of {expected}")
        numbers = [_number(line, place, kind) for place, line in enumerate(lines, 1)]
        check(numbers)
    except ValueError as error:
        return _Content(Rule(name, False, f"{error}; expected lines: {meaning}"), [])
    return _Content(Rule(name, True, ", ".join(f"{number:g}" for number in numbers)), numbers)


def _number(line: str, place: int, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(line)
    except ValueError:
        raise ValueError(f"line {place} is not a number: {line!r}") from None


def _check_crop(numbers: list[int]) -> None:
    left, top, right, bottom, width, height = numbers
    if not (0 <= left < right and 0 <= top < bottom and width > 0 and height > 0):
        raise ValueError(f"{numbers} is not a valid crop and size")


def _check_pixels(numbers: list[float]) -> None:
    if not all(map(math.isfinite, numbers)) or numbers[1] == 0:
        raise ValueError(f"{numbers} cannot normalize pixels")
