"""Reads the image lists of a protocol: landmarks and detector scores, templates and media.

Shapes: N images, T templates.
"""

from __future__ import annotations

import os
from array import array
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from partial_fc.utils.text import plural

from .text_files import MAX_DIGITS, bad_line, is_id, read_columns

LANDMARK_COLUMNS = "name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score"
MEDIA_COLUMNS = "name template media"


class ImageList(NamedTuple):
    """Images of a protocol.

    Attributes:
        names: N file names.
        landmarks: (N, 5, 2) float64, (x, y) in pixels: eyes, nose, corners of the mouth; the one further left in the
            image first.
        detector_scores: (N,) float32.
        templates: (N,) int32 rows of ``template_ids``.
        media: (N,) int32 media ids.
        template_ids: (T,) int32, ascending.
    """

    names: list[str]
    landmarks: np.ndarray
    detector_scores: np.ndarray
    templates: np.ndarray
    media: np.ndarray
    template_ids: np.ndarray


def read_images(landmarks_path: str | os.PathLike, media_path: str | os.PathLike) -> ImageList:
    """Reads ``*_name_5pts_score.txt`` and ``*_face_tid_mid.txt``.

    Raises:
        ValueError: A line is invalid, or the files differ in their images or the order of these (insightface joins them
            by line number alone, so faces would silently get the templates of others). The message names file and line.
        OSError: A file cannot be read.
    """
    names, numbers = read_landmarks(landmarks_path)
    media_names, ids = read_media(media_path)
    for line, (name, other) in enumerate(zip_longest(names, media_names), start=1):
        if name != other:
            raise ValueError(
                f"{os.fspath(landmarks_path)}, line {line}: image {name!r}, but {os.fspath(media_path)} has {other!r}: "
                "both must list the same images in the same order"
            )
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
    """Returns the N names, and ten coordinates and the score of each, (N, 11) float64."""
    names: list[str] = []
    numbers = array("d")
    for line, (name, *values) in read_columns(path, LANDMARK_COLUMNS):
        try:
            numbers.extend(list(map(float, values)))
        except ValueError:
            raise bad_line(path, line, "landmarks and score must be numbers", " ".join([name, *values])) from None
        names.append(name)
    table = np.frombuffer(numbers, np.float64).reshape(-1, 11) if names else np.empty((0, 11))
    check_numbers(path, names, table)
    return names, table


def check_numbers(path: str | os.PathLike, names: list[str], table: np.ndarray) -> None:
    """Raises ValueError if there are no images, values are not finite, or all landmarks of a face coincide."""
    if not names:
        raise ValueError(f"{os.fspath(path)} lists no images")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise bad_line(path, row + 1, "landmarks and score must be finite", f"{names[row]} {table[row].tolist()}")
    points = table[:, :10].reshape(-1, 5, 2)
    spread = np.ptp(points, axis=1).max(axis=1)
    if not spread.all():
        row = int(spread.argmin())
        raise bad_line(path, row + 1, "the five landmarks coincide, so the face has no size", names[row])


def read_media(path: str | os.PathLike) -> tuple[list[str], np.ndarray]:
    """Returns the N names, and the template and media ids (N, 2) int32."""
    names: list[str] = []
    ids = array("i")
    for line, (name, template, media) in read_columns(path, MEDIA_COLUMNS):
        if not (is_id(template) and is_id(media)):
            problem = f"template and media must be whole numbers of at most {MAX_DIGITS} digits"
            raise bad_line(path, line, problem, f"{name} {template} {media}")
        names.append(name)
        ids.extend((int(template), int(media)))
    return names, np.array(ids, np.int32).reshape(-1, 2)


def check_files(folder: str | os.PathLike, names: list[str]) -> None:
    """Raises FileNotFoundError if ``folder`` lacks images: before hours of embedding, not after."""
    listed = set(os.listdir(folder))
    # Names in subfolders are not in the listing; isfile finds them.
    missing = [name for name in names if name not in listed and not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise FileNotFoundError(
            f"{os.path.join(folder, missing[0])} does not exist; {len(missing):,} of "
            f"{plural(len(names), 'image')} are missing"
        )
