"""Rule: classes whose images are as near to each other as to their own are one person.

Two classes are a pair if their gap, see `centers.gap`, is at most ``split``: the gap that a share of random halves of
one class has, so that it needs no absolute distance. A group is merged if every two of its classes are a pair;
pairs with smaller gaps are considered first.

Shapes: C classes, Q pairs, c classes of a tile.
"""

from collections import defaultdict
from functools import partial
from typing import NamedTuple

import numpy as np

from .centers import Figures, gap
from .nearest import Work, spans, tile_side


class Pairs(NamedTuple):
    """Pairs of classes that are one person: (Q, 2) int64, the lower class first, and their gaps (Q,)."""

    classes: np.ndarray
    gaps: np.ndarray


def split_pairs(centers: str, figures: Figures, limit: float, work: Work) -> Pairs:
    """Compares every two classes; pairs have a gap of at most ``limit``. The bar of ``work`` counts finished classes.

    ``centers`` is the path of a .npy file, (C, E) float32; of ``figures`` ``share`` and ``mean_own`` are read.
    """
    number, size = figures.centers.shape
    side = tile_side(work.memory // work.workers // 3, size)  # cosines and gaps, with their temporary copies
    small = figures._replace(centers=figures.centers[:0], own=figures.own[:0])  # what the processes get
    none = Pairs(np.empty((0, 2), np.int64), np.empty(0, np.float32))
    parts = [none, *work.results(partial(split_part, centers, small, limit, side), number, side)]
    return Pairs(*(np.concatenate(column) for column in zip(*parts)))


def split_part(centers: str, figures: Figures, limit: float, side: int, span: tuple[int, int]) -> Pairs:
    """Returns the pairs of `split_pairs` whose lower class is in a span."""
    every = np.load(centers, mmap_mode="r")
    start, stop = span
    x, left = np.array(every[start:stop]), _part(figures, slice(start, stop), (-1, 1))
    classes, gaps = [], []
    for first, last in spans(len(every), side):
        if last <= start:
            continue
        found = gap(left, _part(figures, slice(first, last), (1, -1)), x @ every[first:last].T)
        row, column = np.nonzero(found <= limit)
        upper = start + row < first + column
        row, column = row[upper], column[upper]
        classes.append(np.stack([start + row, first + column], axis=1))
        gaps.append(found[row, column])
    return Pairs(np.concatenate(classes), np.concatenate(gaps))


def groups(pairs: Pairs) -> list[list[int]]:
    """Returns the groups of classes to merge, each ascending, of which every two classes are a pair."""
    near = set(map(tuple, pairs.classes.tolist()))
    group_of: dict[int, list[int]] = defaultdict(list)
    for one, other in pairs.classes[np.argsort(pairs.gaps, kind="stable")].tolist():
        left, right = group_of[one] or [one], group_of[other] or [other]
        if left is not right and all((min(a, b), max(a, b)) in near for a in left for b in right):
            merged = sorted(left + right)
            group_of.update(dict.fromkeys(merged, merged))
    return sorted({tuple(group): group for group in group_of.values() if group}.values())


def _part(figures: Figures, part: slice, shape: tuple[int, int]) -> Figures:
    return figures._replace(share=figures.share[part].reshape(shape), mean_own=figures.mean_own[part].reshape(shape))
