"""Reads the text files of a protocol: images with landmarks and templates, pairs, and subjects.

Shapes: N images, T templates, P pairs, M templates of a list.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import numpy as np

from partial_fc.utils.regular_files import open_text
from partial_fc.utils.text import encoding_of, read_lines

MAX_DIGITS = 9  # digits of an id, which then fits into int32; the largest id of IJB-C has six digits
MAX_SHOWN = 60  # characters of an invalid line that an error message quotes
Row = TypeVar("Row")


class ImageList(NamedTuple):
    """Images of a protocol."""

    names: list[str]  # N file names
    landmarks: np.ndarray  # (N, 5, 2) float64, (x, y) in pixels: eyes, nose, mouth corners, from left to right
    detector_scores: np.ndarray  # (N,) float32
    templates: np.ndarray  # (N,) int32 rows of ``template_ids``
    media: np.ndarray  # (N,) int32 media ids
    template_ids: np.ndarray  # (T,) int32, ascending


class Pairs(NamedTuple):
    """Pairs of templates: (P,) int32 rows of both templates, and (P,) bool, whether they show the same person."""

    left: np.ndarray
    right: np.ndarray
    issame: np.ndarray


class SubjectList(NamedTuple):
    """Distinct templates of a gallery or of the probes: (M,) int32 template rows, and (M,) int32 subjects."""

    templates: np.ndarray
    subjects: np.ndarray


def read_rows(
    path: str | os.PathLike,
    columns: str,
    parse: Callable[..., Row],
    split: Callable[[str], list[str]] = str.split,
    heading: bool = False,
) -> Iterator[Row]:
    """Yields ``parse(*values)`` for each line that is not blank.

    Args:
        path: path of the file.
        columns: names of the columns, separated by spaces.
        parse: raises ValueError for invalid values, with a message that describes the problem.
        split: splits a line into its values.
        heading: whether the first line may be a heading, which does not start with a number.

    Raises:
        ValueError: A line has a wrong number of values, or ``parse`` refuses them. The message names file and line.
        OSError: The file cannot be read.
    """
    count = len(columns.split())
    # Image names may have any encoding: their bytes go to the file system unchanged.
    for number, line in enumerate(read_lines(path, any_bytes=True), start=1):
        if not line.strip() or heading and number == 1 and line.strip()[0] not in "+-.0123456789":
            continue
        values = split(line)
        try:
            if len(values) != count:
                raise ValueError(f"{len(values)} columns instead of {count} ({columns})")
            row = parse(*values)
        except ValueError as problem:
            shown = line.strip()
            shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
            raise ValueError(f"{os.fspath(path)}, line {number}: {problem}: {shown!r}") from None
        yield row


def whole_number(text: str) -> int:
    """Returns an id or a label. Raises ValueError unless it consists of 1 to MAX_DIGITS decimal digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ValueError(f"{text!r} must be a whole number of at most {MAX_DIGITS} digits")
    return int(text)


def known_template(text: str, known: set[int]) -> int:
    """Returns the id of a template. Raises ValueError if it is unknown."""
    template = whole_number(text)
    if template not in known:
        raise ValueError(f"unknown template {template}: it has no faces")
    return template


def rows_of(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns int32 positions of ``ids`` in the ascending array ``known``; -1 for unknown ids."""
    rows = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[rows] == ids, rows, -1).astype(np.int32)


def read_images(
    landmarks_path: str | os.PathLike, media_path: str | os.PathLike, detector_score: bool = True
) -> ImageList:
    """Reads ``*_name_5pts_score.txt`` and ``*_face_tid_mid.txt``.

    ``detector_score``: whether the scores weight the images, and therefore must be valid weights.

    Raises:
        ValueError: A line is invalid, or the files list different images or another order. The message names file and
            line. (insightface joins the files by line number alone, which may silently mix up the templates.)
        OSError: A file cannot be read.
    """
    columns = "name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score"
    names, numbers = _read_named(landmarks_path, columns, _parse_landmarks, float)
    media_names, ids = _read_named(
        media_path, "name template media", lambda *ids: list(map(whole_number, ids)), np.int32
    )
    if not names:
        raise ValueError(f"{os.fspath(landmarks_path)} lists no images")
    for line, (name, other) in enumerate(zip_longest(names, media_names), start=1):
        if name != other:
            raise ValueError(
                f"{os.fspath(landmarks_path)}, line {line}: image {name!r}, but {os.fspath(media_path)} has {other!r}: "
                "both must list the same images in the same order"
            )
    template_ids, templates = np.unique(ids[:, 0], return_inverse=True)
    points, scores = numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10].astype(np.float32)
    weightless = (scores < 0) | (np.bincount(templates, scores)[templates] == 0)
    if detector_score and weightless.any():
        raise ValueError(
            f"{os.fspath(landmarks_path)}, line {weightless.argmax() + 1}: detector score "
            f"{scores[weightless.argmax()]:g} is not a valid weight: scores must be at least 0, and not all 0 in "
            f"template {ids[weightless.argmax(), 0]}; correct them, or use --no-detector-score"
        )
    return ImageList(names, points, scores, templates.astype(np.int32), ids[:, 1], template_ids)


def _read_named(
    path: str | os.PathLike, columns: str, parse: Callable[..., list], dtype: type
) -> tuple[list[str], np.ndarray]:
    """Returns the names in the first column, and an array of what ``parse`` returns for the other columns."""
    names: list[str] = []

    def add(name: str, *values: str) -> list:
        names.append(name)
        return parse(*values)

    # fromiter reads row by row: a list of all numbers would take five times the memory.
    return names, np.fromiter(read_rows(path, columns, add), np.dtype((dtype, columns.count(" "))))


def _parse_landmarks(*values: str) -> list[float]:
    try:
        numbers = list(map(float, values))
    except ValueError:
        raise ValueError("landmarks and score must be numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError("landmarks and score must be finite")
    if len(set(zip(numbers[:10:2], numbers[1:10:2]))) == 1:
        raise ValueError("the five landmarks coincide, so the face has no size")
    return numbers


def read_pairs(path: str | os.PathLike, template_ids: np.ndarray) -> Pairs:
    """Reads ``*_template_pair_label.txt``: template, template, label (1 for the same person, otherwise 0).

    ``template_ids`` are the ids (T,) of the protocol's templates, ascending.

    Raises:
        ValueError: A line is invalid (the message names file and line), or all labels are equal.
        OSError: The file cannot be read.
    """
    known = set(template_ids.tolist())

    def parse(left: str, right: str, label: str) -> tuple[int, int, int]:
        if whole_number(label) > 1:
            raise ValueError("the label must be 1 for the same person or 0")
        return known_template(left, known), known_template(right, known), int(label)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an empty file, which is an error below
            warnings.simplefilter("error", DeprecationWarning)  # for 0.5, which would become 0
            with open_text(path) as file:
                encoding = encoding_of(file.read(2))
            table = np.loadtxt(path, np.int32, comments=None, ndmin=2, encoding=encoding).reshape(-1, 3)
        left, right = (rows_of(column, template_ids) for column in table.T[:2])
        issame = table[:, 2] == 1
        valid = min(left.min(initial=0), right.min(initial=0)) >= 0 and (issame | (table[:, 2] == 0)).all()
    except ValueError:
        valid = False
    if not valid:
        # A loop over the lines takes six times as long as loadtxt for the 15,658,489 lines of IJB-C, but its error
        # names the line.
        list(read_rows(path, "template template label", parse))
        raise AssertionError("a file without an invalid line was refused")
    if issame.all() or not issame.any():
        raise ValueError(
            f"{os.fspath(path)} must contain pairs with label 1 and pairs with label 0: all {len(issame):,} are equal"
        )
    return Pairs(left, right, issame)


def read_subjects(path: str | os.PathLike, template_ids: np.ndarray, gallery: bool) -> SubjectList:
    """Reads a list of templates and subjects: an optional heading, then lines that begin with template,subject.

    The official lists have a line per image, so templates repeat.

    Args:
        path: path of the file.
        template_ids: (T,) ids of the protocol's templates, ascending.
        gallery: whether each subject must have a single template, as in insightface's IJB_1N.

    Raises:
        ValueError: A line does not begin with two numbers, its template is unknown or had another subject before, its
            subject has a second template in a gallery, or the list is empty. The message names file and line.
        OSError: The file cannot be read.
    """
    known = set(template_ids.tolist())
    subject_of: dict[int, int] = {}
    template_of: dict[int, int] = {}

    def add(*values: str) -> None:
        template, subject = known_template(values[0].strip(), known), whole_number(values[1].strip())
        if subject_of.setdefault(template, subject) != subject:
            raise ValueError(f"template {template} has subject {subject_of[template]} in an earlier line")
        if template_of.setdefault(subject, template) != template and gallery:
            first = template_of[subject]
            raise ValueError(f"subject {subject} of a gallery has a second template, the first is {first}")

    for _ in read_rows(path, "template subject", add, lambda line: line.split(",", 2)[:2], heading=True):
        pass
    if not subject_of:
        raise ValueError(f"{os.fspath(path)} lists no templates")
    templates, subjects = np.array(list(subject_of.items()), np.int32).T
    return SubjectList(rows_of(templates, template_ids), subjects)
