"""Class centers that wrong labels do not pull away, and how near each image is to the others of its class.

The center of a class is the direction of the mean of its typical images. An image is typical if its cosine to the mean
of the others is at least ``far``, which only a share ``far`` of the images of other classes reach. This is decided
ROUNDS times, from the mean of all images on. An image is always compared with a mean of which it is no part.

Shapes: N images, C classes that have images, E embedding, n images and c classes of a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.utils.hashing import mix

ROUNDS = 2
SAMPLED = 1 << 18  # images of which the cosine to the center of another class is taken
COPIES = 12  # of a block of embeddings that are in memory at a time, in float32


class Classes(NamedTuple):
    """Which images are in which class."""

    names: np.ndarray  # (C,) int64, ascending, the labels that have images
    rows: np.ndarray  # (N,) int64, the class of each image, an index of ``names``
    order: np.ndarray  # (N,) int64, the images class by class
    bounds: np.ndarray  # (C + 1,) int64, where the classes begin in ``order``

    @classmethod
    def of(cls, labels: np.ndarray) -> "Classes":
        """Returns the classes of the labels (N,) of all images."""
        names, rows, counts = np.unique(labels, return_inverse=True, return_counts=True)
        return cls(names, rows, np.argsort(rows, kind="stable"), np.append(0, np.cumsum(counts)))

    def blocks(self, images: int) -> Iterator[tuple[int, int]]:
        """Yields consecutive (first, last) classes that have at most ``images`` images together, or are only one."""
        first = 0
        while first < len(self.names):
            last = int(np.searchsorted(self.bounds, self.bounds[first] + images, side="right")) - 1
            last = max(last, first + 1)
            yield first, last
            first = last


class Figures(NamedTuple):
    """What the images of some classes say about them, see `figures`."""

    centers: np.ndarray  # (c, E) float32 of length 1; zeros for a class without an image that counts
    share: np.ndarray  # (c,) float32, length of the mean of the embeddings that count
    mean_own: np.ndarray  # (c,) float32, mean of ``own`` over the images that count; NaN for fewer than two
    own: np.ndarray  # (n,) float32, cosine of an image to the mean of the others that count; NaN if there are none


class Fit(NamedTuple):
    """The figures of all classes, which of the images are typical, (N,) bool, and the limit of that.

    ``between``: (S,) float32, cosines of some images to the centers of other classes. ``halves``: (H,) float32, the gap
    between random halves of one class, see split_classes.py, of classes with four typical images or more.
    ``separation``: how often an image is nearer to the others of its class than an image is to another class, before
    any is left out of a mean; ties count half, so that chance is 0.5.
    """

    figures: Figures
    typical: np.ndarray
    far: float
    between: np.ndarray
    halves: np.ndarray
    separation: float


def fit(embeddings: np.ndarray, classes: Classes, far: float, memory: int) -> Fit:
    """Returns the centers of all classes.

    Args:
        embeddings: (N, E) of length 1, zeros for images that do not count.
        classes: of the images.
        far: share of the images of other classes that an image must be nearer than to be typical.
        memory: bytes that may be used beside the results.
    """
    if len(classes.names) < 2:
        raise ValueError("the set has images of one class only: nothing can be compared")
    usable = np.empty(len(embeddings), bool)
    images = max(1, memory // (4 * COPIES * embeddings.shape[1]))
    for part in np.array_split(np.arange(len(embeddings)), 1 + len(embeddings) // images):
        usable[part] = embeddings[part].any(axis=1)
    found = _figures_of_all(embeddings, classes, usable, images)
    between = between_classes(embeddings, classes, found.centers, usable, images)
    separation = share_above(found.own[usable & np.isfinite(found.own)], between)
    for number in range(ROUNDS):
        if number:
            between = between_classes(embeddings, classes, found.centers, usable, images)
        limit = float(np.quantile(between, 1 - far))
        typical = usable & (found.own >= limit)
        found = _figures_of_all(embeddings, classes, typical, images)
    halves = [half_gaps(*block) for _, _, *block in _blocks(embeddings, classes, typical, images)]
    return Fit(found, typical, limit, between, np.concatenate(halves), separation)


def share_above(values: np.ndarray, others: np.ndarray) -> float:
    """Returns the probability that a value is above another one; ties count half. 0.5 without either."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")
    return float(below.mean()) / 2 / len(others) if len(values) and len(others) else 0.5


def figures(x: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> Figures:
    """Returns the figures of classes whose images follow each other.

    Args:
        x: (n, E) float32 of length 1.
        counts: (n,) bool, whether an image is part of the mean of its class.
        starts: (c,) where the classes begin in ``x``.
    """
    weights = counts.astype(np.float32)
    sums = np.add.reduceat(x * weights[:, None], starts, axis=0)
    number = np.add.reduceat(weights, starts)
    rows = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(x)))
    others = sums[rows] - x * weights[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.einsum("ne,ne->n", others, x) / np.linalg.norm(others, axis=1)
        own[number[rows] - weights < 1] = np.nan  # else the rounding of a sum that is zero
        length = np.linalg.norm(sums, axis=1)
        mean_own = np.add.reduceat(np.where(counts, own, 0), starts) / number
        mean_own[number < 2] = np.nan
        centers = np.where(number[:, None] > 0, sums / length[:, None], 0)
        return Figures(centers, length / number, mean_own, own)


def half_gaps(x: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the gaps (H,) between two halves of each class that has four images that count, or more."""
    before = np.cumsum(counts) - counts
    turn = (before - np.repeat(before[starts], np.diff(starts, append=len(x)))) % 2
    left, right = (figures(x, counts & (turn == half), starts) for half in (0, 1))
    gaps = gap(left, right, np.einsum("ce,ce->c", left.centers, right.centers))
    return gaps[np.isfinite(gaps)]


def gap(left: Figures, right: Figures, cosine: np.ndarray) -> np.ndarray:
    """Returns how much nearer typical images are to their own class than to another one, on average of both classes.

    The mean cosine of the images of a class to a direction is ``share`` times that of its center. Two classes of one
    person have a gap of about 0. NaN for a class with fewer than two typical images. ``cosine`` is that of the centers.
    """
    result: np.ndarray = (left.mean_own + right.mean_own - (left.share + right.share) * cosine) / 2
    return result


def between_classes(
    embeddings: np.ndarray, classes: Classes, centers: np.ndarray, usable: np.ndarray, images: int
) -> np.ndarray:
    """Returns (S,) float32: the cosines of usable images, evenly spaced, each to the center of a random other class."""
    positions = np.flatnonzero(usable)
    positions = positions[np.linspace(0, len(positions) - 1, min(SAMPLED, len(positions))).astype(np.int64)]
    if not len(positions):
        raise ValueError("no image of the set can be decoded: see partial-fc sets check")
    shift = 1 + (mix(positions.astype(np.uint64)) % np.uint64(len(centers) - 1)).astype(np.int64)
    other = (classes.rows[positions] + shift) % len(centers)
    parts = np.array_split(np.arange(len(positions)), 1 + len(positions) // images)
    return np.concatenate(
        [np.einsum("ne,ne->n", embeddings[positions[p]].astype(np.float32), centers[other[p]]) for p in parts]
    )


def _figures_of_all(embeddings: np.ndarray, classes: Classes, counts: np.ndarray, images: int) -> Figures:
    """Returns the figures of all classes, ``own`` in the order of the images."""
    number, size = len(classes.names), embeddings.shape[1]
    share, mean_own = np.empty((2, number), np.float32)
    found = Figures(np.empty((number, size), np.float32), share, mean_own, np.empty(len(counts), np.float32))
    for part, positions, *block in _blocks(embeddings, classes, counts, images):
        *of_classes, found.own[positions] = figures(*block)
        for every, values in zip(found, of_classes):
            every[part] = values
    return found


def _blocks(
    embeddings: np.ndarray, classes: Classes, counts: np.ndarray, images: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields some classes at a time, the positions of their images, and the arguments of `figures`."""
    for first, last in classes.blocks(images):
        begin, end = classes.bounds[first], classes.bounds[last]
        positions = classes.order[begin:end]
        x = embeddings[positions].astype(np.float32)
        yield slice(first, last), positions, x, counts[positions], classes.bounds[first:last] - begin
