"""Reads the list of pairs: 15,658,489 lines in IJB-C.

Shapes: P pairs, T templates.
"""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import numpy as np

from .text_files import MAX_DIGITS, bad_line, is_id, read_columns, rows_of

COLUMNS = "template template label"


class Pairs(NamedTuple):
    """Pairs of templates.

    Attributes:
        left: (P,) int32 rows of the templates.
        right: (P,) int32 rows of the templates.
        issame: (P,) bool, whether both show the same person.
    """

    left: np.ndarray
    right: np.ndarray
    issame: np.ndarray


def read_pairs(path: str | os.PathLike, template_ids: np.ndarray) -> Pairs:
    """Reads ``*_template_pair_label.txt``: template, template, 1 for the same person or 0.

    Args:
        path: The file.
        template_ids: (T,) ids of the protocol's templates, ascending.

    Raises:
        ValueError: A line is not such a pair (the message names file and line), or all labels are equal.
        OSError: The file cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a file without lines, which is an error below
            warnings.simplefilter("error", DeprecationWarning)  # 0.5 would become 0
            table = np.loadtxt(path, np.int32, comments=None, ndmin=2, encoding="utf-8").reshape(-1, 3)
    except ValueError:
        raise first_error(path, template_ids) from None
    left, right = (rows_of(column, template_ids) for column in table.T[:2])
    issame = table[:, 2] == 1
    if min(left.min(initial=0), right.min(initial=0)) < 0 or ((table[:, 2] != 0) & ~issame).any():
        raise first_error(path, template_ids)
    if issame.all() or not issame.any():
        raise ValueError(
            f"{os.fspath(path)} must contain pairs with label 1 and pairs with label 0: all {len(issame):,} are equal"
        )
    return Pairs(left, right, issame)


def first_error(path: str | os.PathLike, template_ids: np.ndarray) -> ValueError:
    """Returns the error for the first invalid line of a file that has one."""
    known = set(template_ids.tolist())
    for number, values in read_columns(path, COLUMNS):
        problem = line_problem(values, known)
        if problem:
            return bad_line(path, number, problem, " ".join(values))
    raise AssertionError("a file without an invalid line was refused")


def line_problem(values: list[str], known: set[int]) -> str:
    """Returns the problem with the values of a line, "" if there is none."""
    if not all(map(is_id, values)):
        return f"a pair must be three whole numbers of at most {MAX_DIGITS} digits"
    if int(values[2]) > 1:
        return "the label must be 1 for the same person or 0"
    unknown = [value for value in values[:2] if int(value) not in known]
    return f"unknown template {int(unknown[0])}: it has no faces" if unknown else ""
