"""The images of a protocol: landmarks and detector score from one file, template and media from the other.

Shapes: N images, T templates.
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

import numpy as np

from partial_fc.utils.text import plural

from .words import MAX_DIGITS, bad_line, is_id, read_words

LANDMARK_COLUMNS = "name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score"
MEDIA_COLUMNS = "name template media"


class ImageList(NamedTuple):
    """`names` (N); `landmarks` (N, 5, 2) float64: x, y in pixels of eyes, nose and corners of the mouth, each pair with
    the one at the left of the image first; `detector_scores` (N,) float32; `templates` (N,) int32: rows of
    `template_ids` (T,) int32, which ascends; `media` (N,) int32."""

    names: list[str]
    landmarks: np.ndarray
    detector_scores: np.ndarray
    templates: np.ndarray
    media: np.ndarray
    template_ids: np.ndarray


def read_images(landmarks_path: str | os.PathLike, media_path: str | os.PathLike) -> ImageList:
    """The images of `*_name_5pts_score.txt` and `*_face_tid_mid.txt`.

    Raises ValueError naming file and line where a line is malformed or the files differ in their images or their order
    (the originals join them by the line number alone, so a difference would quietly give faces to others), and OSError
    if a file cannot be read.
    """
    names, numbers = read_landmarks(landmarks_path)
    media_names, ids = read_media(media_path)
    if names != media_names:
        raise difference(names, media_names, os.fspath(landmarks_path), os.fspath(media_path))
    template_ids, templates = np.unique(ids[:, 0], return_inverse=True)
    return ImageList(
        names,
        numbers[:, :10].reshape(-1, 5, 2),
        numbers[:, 10].astype(np.float32),
        templates.reshape(-1).astype(np.int32),
        ids[:, 1],
        template_ids,
    )


def read_landmarks(path: str | os.PathLike) -> tuple[list[str], np.ndarray]:
    """Names (N) and ten coordinates and the score (N, 11) float64."""
    names: list[str] = []
    numbers = array("d")
    for number, words in read_words(path, LANDMARK_COLUMNS):
        try:
            values = list(map(float, words[1:]))
        except ValueError:
            raise bad_line(path, number, "landmarks and score must be numbers", " ".join(words)) from None
        names.append(words[0])
        numbers.extend(values)
    table = np.frombuffer(numbers, np.float64).reshape(-1, 11) if names else np.empty((0, 11))
    check_numbers(path, names, table)
    return names, table


def check_numbers(path: str | os.PathLike, names: list[str], table: np.ndarray) -> None:
    """Raise ValueError for no image, numbers that are not finite, and landmarks that all lie on one point."""
    if not names:
        raise ValueError(f"{os.fspath(path)} names no image")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise bad_line(path, row + 1, "landmarks and score must be finite", f"{names[row]} {table[row].tolist()}")
    points = table[:, :10].reshape(-1, 5, 2)
    spread = np.ptp(points, axis=1).max(axis=1)
    if not spread.all():
        row = int(spread.argmin())
        raise bad_line(path, row + 1, "the five landmarks are one point, which gives a face no size", names[row])


def read_media(path: str | os.PathLike) -> tuple[list[str], np.ndarray]:
    """Names (N) and template and media ids (N, 2) int32."""
    names: list[str] = []
    ids = array("i")
    for number, words in read_words(path, MEDIA_COLUMNS):
        if not (is_id(words[1]) and is_id(words[2])):
            what = f"template and media must be whole numbers of at most {MAX_DIGITS} digits"
            raise bad_line(path, number, what, " ".join(words))
        names.append(words[0])
        ids.extend((int(words[1]), int(words[2])))
    return names, np.array(ids, np.int32).reshape(-1, 2)


def difference(left: list[str], right: list[str], left_path: str, right_path: str) -> ValueError:
    """The error for two lists that differ: an image that only one of them has, else the first change of the order."""
    for names, others, path, other_path in ((left, right, left_path, right_path), (right, left, right_path, left_path)):
        there = set(others)
        for number, name in enumerate(names, start=1):
            if name not in there:
                return ValueError(f"{path}, line {number}: image {name!r} is not in {other_path}")
    for number, (name, other) in enumerate(zip(left, right), start=1):
        if name != other:
            return ValueError(
                f"{left_path}, line {number}: image {name!r}, where {right_path} has {other!r}: both lists must have "
                "the same order"
            )
    return ValueError(
        f"{left_path} has {plural(len(left), 'line')} and {right_path} {len(right):,}: both must name the same images"
    )


def check_files(folder: str | os.PathLike, names: list[str]) -> None:
    """Raise OSError naming the first image that `folder` lacks: before hours of embedding, not after."""
    there = set(os.listdir(folder))
    # Names within subfolders are not in the listing, so what is not there is asked for once more.
    missing = [name for name in names if name not in there and not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise FileNotFoundError(
            f"{os.path.join(folder, missing[0])} is missing, {plural(len(missing), 'image')} of {len(names):,} in all"
        )
