"""Galleries and probes of the 1:N protocols: which template shows which subject.

Shapes: M templates of a list, T templates of the protocol.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from .words import bad_line, is_id, rows_of


class SubjectList(NamedTuple):
    """`templates` (M,) int32: rows of the protocol's templates, each once; `subjects` (M,) int32."""

    templates: np.ndarray
    subjects: np.ndarray


def read_subjects(path: str | os.PathLike, template_ids: np.ndarray, gallery: bool) -> SubjectList:
    """A list of templates with their subjects: a header, then lines that begin with template,subject.

    The official lists have a line for each image, so templates come again; they count once. `template_ids` (T,)
    ascends. A gallery has one template a subject (insightface's IJB_1N stops at another too).

    Raises ValueError naming file and line for a line without the two numbers, a template that no face has or that has
    two subjects, a second template of a subject in a gallery, and an empty list; OSError if it cannot be read.
    """
    known = set(template_ids.tolist())
    subject_of: dict[int, int] = {}
    template_of: dict[int, int] = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            words = [word.strip() for word in line.split(",", 2)[:2]]
            if number == 1 or (not line.strip() and words == [""]):
                continue
            if len(words) != 2 or not all(map(is_id, words)):
                raise bad_line(path, number, "a line begins with the numbers template,subject", line)
            template, subject = map(int, words)
            if template not in known:
                raise bad_line(path, number, f"the list of faces has no template {template}", line)
            if subject_of.setdefault(template, subject) != subject:
                what = f"template {template} has subject {subject_of[template]} in a line before"
                raise bad_line(path, number, what, line)
            if template_of.setdefault(subject, template) != template and gallery:
                what = f"subject {subject} has template {template_of[subject]} already, and a gallery has one each"
                raise bad_line(path, number, what, line)
    if not subject_of:
        raise ValueError(f"{os.fspath(path)} names no template")
    templates = np.fromiter(subject_of, np.int32, len(subject_of))
    subjects = np.fromiter(subject_of.values(), np.int32, len(subject_of))
    return SubjectList(rows_of(templates, template_ids), subjects)
