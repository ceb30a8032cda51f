"""All typefaces at hand, and which of them draws which character.

Shapes: C characters, F typefaces.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fontTools.ttLib import TTLibError

from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress

from .drawing import can_draw
from .fetch import Package, fetch
from .typefaces import Typeface, read_typefaces


class Library(NamedTuple):
    """The typefaces of training, then the new ones, and what each draws: (F, C) bool by typeface and CHARACTERS."""

    typefaces: list[Typeface]
    draws: np.ndarray


def read_library(fonts: Path, workers: int, packages: Sequence[Package]) -> Library:
    """Fetches the typefaces of packages, and reads what they draw.

    Raises:
        OSError: They cannot be fetched.
    """
    found = fetch(fonts, packages)
    tasks = [(package.name, package.is_new, path) for package, files in found.items() for path in files]
    read: list[tuple[Typeface, np.ndarray]] = []
    with progress(len(tasks), "file", "reading typefaces") as bar:
        for _, faces in ordered_map(_read, tasks, workers):
            read += faces
            bar.update(1)
    if not read:
        raise OSError(f"no typefaces in {fonts}: run apt-get update (Debian, Ubuntu), then try again")
    # No new typeface may show an outline of training.
    read.sort(key=lambda face: face[0].is_new)
    return Library([typeface for typeface, _ in read], distinct(np.stack([outlines for _, outlines in read])))


def distinct(outlines: np.ndarray) -> np.ndarray:
    """Leaves the first typeface of each outline of a character: (F, C) uint64, 0 for none -> (F, C) bool."""
    kept = np.zeros(outlines.shape, bool)
    for column in range(outlines.shape[1]):
        _, first = np.unique(outlines[:, column], return_index=True)
        kept[first, column] = True
    return kept & (outlines != 0)


def _read(task: tuple[str, bool, Path]) -> list[tuple[Typeface, np.ndarray]]:
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns of dates and names that nothing here reads
    try:
        read = read_typefaces(*task)
    except TTLibError as error:
        print(f"{task[-1]}: {error}: left out", file=sys.stderr)
        return []
    # Two typefaces of Debian 12 have hinting instructions that FreeType refuses.
    return [(face, outlines) for face, outlines in read if can_draw(face, outlines)]
