"""Rule: two classes show one person if their images are as near to the other class as to their own.

Two classes are a pair if their gap, see `centers.gap`, is at most the limit ``split``. This limit is a quantile of the
gaps between halves of one class, so no fixed distance is needed. A group of classes is merged if every two of them are
a pair; pairs with smaller gaps are considered first.

Shapes: C classes, Q pairs, c classes of a tile.
"""

from functools import partial

import numpy as np

from .centers import ClassStatistics, gap
from .nearest import Work, spans, tile_side

Pairs = tuple[np.ndarray, np.ndarray]  # (Q, 2) int64, the lower class first, and their gaps (Q,) float32


def split_pairs(centers: str, statistics: ClassStatistics, limit: float, work: Work) -> Pairs:
    """Compares every two classes and returns the pairs whose gap is at most ``limit``.

    ``centers`` is the path of a .npy file (C, E) float32.
    """
    number, size = statistics.centers.shape
    side = tile_side(work.memory // work.workers // 3, size)  # for gaps and temporary copies, too
    function = partial(split_part, centers, statistics.mean_own_cosine, statistics.mean_length, limit, side)
    parts = list(work.results(function, number, side, "class", "comparing classes"))
    classes, gaps = (np.concatenate(column) for column in zip(*parts))
    return classes, gaps


def split_part(
    centers: str, mean_own_cosine: np.ndarray, mean_length: np.ndarray, limit: float, side: int, span: tuple[int, int]
) -> Pairs:
    """Returns the pairs of `split_pairs` whose lower class is in a span."""
    all_centers = np.load(centers, mmap_mode="r")
    start, stop = span
    x = np.array(all_centers[start:stop])
    classes, gaps = [], []
    for first, last in spans(len(all_centers), side):
        if last <= start:
            continue
        tile = gap(
            mean_own_cosine[start:stop, None] + mean_own_cosine[first:last],
            mean_length[start:stop, None] + mean_length[first:last],
            x @ all_centers[first:last].T,
        )
        row, column = np.nonzero(tile <= limit)
        upper = start + row < first + column
        row, column = row[upper], column[upper]
        classes.append(np.stack([start + row, first + column], axis=1))
        gaps.append(tile[row, column])
    return np.concatenate(classes), np.concatenate(gaps)


def groups(classes: np.ndarray, gaps: np.ndarray) -> list[list[int]]:
    """Returns the groups of classes to merge, each ascending: every two classes of a group are a pair (Q, 2)."""
    pairs = set(map(tuple, classes.tolist()))
    group_of: dict[int, list[int]] = {}
    for one, other in classes[np.argsort(gaps, kind="stable")].tolist():
        left, right = group_of.get(one, [one]), group_of.get(other, [other])
        if left is not right and all((min(a, b), max(a, b)) in pairs for a in left for b in right):
            merged = sorted(left + right)
            group_of.update(dict.fromkeys(merged, merged))
    return sorted({tuple(group): group for group in group_of.values()}.values())
