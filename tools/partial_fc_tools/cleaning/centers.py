"""Class centers that are robust to wrong labels, and the cosine of each image to its class.

The center of a class is the direction of the mean of its typical images. An image is typical if its cosine to the mean
of the other images of its class is at least ``far``. Only a fraction ``far_share`` of the images of other classes
reaches ``far``. Typical images are selected ROUNDS times; the first round starts from the mean of all images. An image
is never compared with a mean that includes it.

Shapes: N images, C classes that have images, E embedding, n images and c classes of a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.utils.hashing import mix

ROUNDS = 2
SAMPLED = 1 << 18  # images whose cosine to the center of another class is computed
COPIES = 12  # float32 copies of a block of embeddings that are in memory at once


class Classes(NamedTuple):
    """Which images belong to which class."""

    labels: np.ndarray  # (C,) int64, ascending, the labels that have images
    class_of: np.ndarray  # (N,) int64, the class of each image, an index into ``labels``
    order: np.ndarray  # (N,) int64, the images class by class
    bounds: np.ndarray  # (C + 1,) int64, where the classes begin in ``order``

    @classmethod
    def of(cls, labels: np.ndarray) -> "Classes":
        """Groups images by their labels (N,)."""
        used, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
        return cls(used, class_of, np.argsort(class_of, kind="stable"), np.append(0, np.cumsum(counts)))


class ClassStatistics(NamedTuple):
    """Statistics of some classes and their images, see `class_statistics`."""

    centers: np.ndarray  # (c, E) float32 of length 1; zeros for a class without an image that counts
    mean_length: np.ndarray  # (c,) float32, length of the mean of the embeddings that count
    mean_own_cosine: np.ndarray  # (c,) float32, over the images that count; NaN for fewer than two
    own_cosine: np.ndarray  # (n,) float32, cosine of an image to the mean of the others that count; NaN without others


class Fit(NamedTuple):
    """The centers of all classes, and the statistics that determine the limits."""

    statistics: ClassStatistics
    typical: np.ndarray  # (N,) bool
    far: float  # lowest cosine of a typical image to the other images of its class
    between: np.ndarray  # (S,) float32, cosines of some images to the centers of other classes
    half_gaps: np.ndarray  # (H,) float32, gaps between two halves of each class with four or more typical images
    # Probability that the cosine of an image to its class exceeds the cosine of an image to another class, before any
    # image is excluded from the means; ties count half, so chance is 0.5.
    separation: float


def fit(embeddings: np.ndarray, classes: Classes, far_share: float, memory: int) -> Fit:
    """Finds the centers of all classes.

    Args:
        embeddings: (N, E) of length 1; zeros for images that do not count.
        classes: the classes of the images.
        far_share: fraction of the images of other classes whose cosine to a class reaches ``far``.
        memory: bytes to use in addition to the results.
    """
    if len(classes.labels) < 2:
        raise ValueError("the set has images of one class only: nothing can be compared")
    block = max(1, memory // (4 * COPIES * embeddings.shape[1]))
    usable = np.concatenate([embeddings[i : i + block].any(axis=1) for i in range(0, len(embeddings), block)])
    statistics = _all_statistics(embeddings, classes, usable, block)
    for number in range(ROUNDS):
        between = between_classes(embeddings, classes, statistics.centers, usable, block)
        if number == 0:
            separation = share_above(statistics.own_cosine[usable & np.isfinite(statistics.own_cosine)], between)
        far = float(np.quantile(between, 1 - far_share))
        typical = usable & (statistics.own_cosine >= far)
        statistics = _all_statistics(embeddings, classes, typical, block)
    gaps = [half_gaps(*arguments) for _, _, *arguments in _blocks(embeddings, classes, typical, block)]
    return Fit(statistics, typical, far, between, np.concatenate(gaps), separation)


def share_above(values: np.ndarray, others: np.ndarray) -> float:
    """Returns the probability that a value exceeds one of the others; ties count half. 0.5 if either is empty."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")
    return float(below.mean()) / 2 / len(others) if len(values) and len(others) else 0.5


def class_statistics(x: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> ClassStatistics:
    """Computes the statistics of classes whose images are consecutive.

    Args:
        x: (n, E) float32 of length 1.
        counts: (n,) bool, whether an image counts towards the mean of its class.
        starts: (c,) where the classes begin in ``x``.
    """
    weights = counts.astype(np.float32)
    sums = np.add.reduceat(x * weights[:, None], starts, axis=0)
    number = np.add.reduceat(weights, starts)
    rows = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(x)))
    others = sums[rows] - x * weights[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        own_cosine = np.einsum("ne,ne->n", others, x) / np.linalg.norm(others, axis=1)
        own_cosine[number[rows] - weights < 1] = np.nan  # without others the sum is rounding noise, not exactly 0
        length = np.linalg.norm(sums, axis=1)
        mean_own_cosine = np.add.reduceat(np.where(counts, own_cosine, 0), starts) / number
        mean_own_cosine[number < 2] = np.nan
        centers = np.where(number[:, None] > 0, sums / length[:, None], 0)
        return ClassStatistics(centers, length / number, mean_own_cosine, own_cosine)


def half_gaps(x: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the gaps (H,) between two halves of each class with four or more images that count."""
    before = np.cumsum(counts) - counts
    half_of = (before - np.repeat(before[starts], np.diff(starts, append=len(x)))) % 2
    left, right = (class_statistics(x, counts & (half_of == half), starts) for half in (0, 1))
    cosine = np.einsum("ce,ce->c", left.centers, right.centers)
    gaps = gap(left.mean_own_cosine + right.mean_own_cosine, left.mean_length + right.mean_length, cosine)
    return gaps[np.isfinite(gaps)]


def gap(mean_own_cosine: np.ndarray, mean_length: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """Returns how much nearer typical images are to their own class than to the other, averaged over two classes.

    The mean cosine of a class's images to any direction is ``mean_length`` times the center's cosine to it.
    Two classes of one person have a gap of about 0.

    Args:
        mean_own_cosine, mean_length: sums over both classes. The first one and the gap are NaN if a class has fewer
            than two typical images.
        cosine: cosine of the two centers.
    """
    result: np.ndarray = (mean_own_cosine - mean_length * cosine) / 2
    return result


def between_classes(
    embeddings: np.ndarray, classes: Classes, centers: np.ndarray, usable: np.ndarray, block: int
) -> np.ndarray:
    """Returns (S,) float32: cosines of evenly spaced usable images, each to the center of a random other class."""
    positions = np.flatnonzero(usable)
    positions = positions[np.linspace(0, len(positions) - 1, min(SAMPLED, len(positions))).astype(np.int64)]
    if not len(positions):
        raise ValueError("no image of the set can be decoded: see partial-fc sets check")
    shift = 1 + (mix(positions.astype(np.uint64)) % np.uint64(len(centers) - 1)).astype(np.int64)
    other = (classes.class_of[positions] + shift) % len(centers)
    parts = (slice(start, start + block) for start in range(0, len(positions), block))
    return np.concatenate(
        [np.einsum("ne,ne->n", embeddings[positions[p]].astype(np.float32), centers[other[p]]) for p in parts]
    )


def _all_statistics(embeddings: np.ndarray, classes: Classes, counts: np.ndarray, block: int) -> ClassStatistics:
    """Returns the statistics of all classes, ``own_cosine`` in the order of the images."""
    number, size = len(classes.labels), embeddings.shape[1]
    mean_length, mean_own_cosine = np.empty((2, number), np.float32)
    own_cosine = np.empty(len(counts), np.float32)
    result = ClassStatistics(np.empty((number, size), np.float32), mean_length, mean_own_cosine, own_cosine)
    for part, positions, *arguments in _blocks(embeddings, classes, counts, block):
        *of_classes, own_cosine[positions] = class_statistics(*arguments)
        for array, values in zip(result, of_classes):
            array[part] = values
    return result


def _blocks(
    embeddings: np.ndarray, classes: Classes, counts: np.ndarray, block: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields consecutive classes with at most ``block`` images together, or a single larger class.

    Each item is the slice of the classes, the positions of their images, and the arguments of `class_statistics`.
    """
    bounds, first = classes.bounds, 0
    while first < len(classes.labels):
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + block, side="right")) - 1)
        positions = classes.order[bounds[first] : bounds[last]]
        x = embeddings[positions].astype(np.float32)
        yield slice(first, last), positions, x, counts[positions], bounds[first:last] - bounds[first]
        first = last
