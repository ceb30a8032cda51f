"""Rule: an image that is as near to an earlier one of its class as an altered copy of it would be is a near-duplicate.

Images with wrong labels and split classes are in their true classes by then. The earliest image of those that are near
each other stays; an image is removed if one that stays is near.

Shapes: N images, D near-duplicates, n images of a class, E embedding.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .centers import Classes
from .nearest import spans, tile_side


class Duplicates(NamedTuple):
    """The D images, (D,) int64, the image that stays for each, and their cosines."""

    images: np.ndarray
    kept: np.ndarray
    cosines: np.ndarray


def near_duplicates(embeddings: np.ndarray, classes: np.ndarray, limit: float, memory: int, bar: Any) -> Duplicates:
    """Finds near-duplicates within the classes.

    Args:
        embeddings: (N, E) float16 or float32 of length 1.
        classes: (N,) int64, the class of each image; images with -1 are left out.
        limit: cosine of near-duplicates.
        memory: bytes that may be used.
        bar: progress bar, updated by the number of finished images.
    """
    images = np.flatnonzero(classes >= 0)
    by_class = Classes.of(classes[images])
    side = tile_side(memory, embeddings.shape[1])
    removed: list[tuple[int, int, float]] = []
    for begin, end in zip(by_class.bounds[:-1], by_class.bounds[1:]):
        positions = images[by_class.order[begin:end]]
        found: dict[int, tuple[int, float]] = {}
        for earlier, later, cosine in near_pairs(embeddings, positions, limit, side):
            if earlier not in found and later not in found:
                found[later] = earlier, cosine
        removed += [(int(positions[later]), int(positions[kept]), cos) for later, (kept, cos) in found.items()]
        bar.update(len(positions))
    columns = list(zip(*removed)) or [(), (), ()]
    return Duplicates(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.float32))


def near_pairs(
    embeddings: np.ndarray, positions: np.ndarray, limit: float, side: int
) -> Iterator[tuple[int, int, float]]:
    """Yields (earlier, later, cosine) of near images, as indices of ``positions`` (n,), ordered by the later one."""
    for start, stop in spans(len(positions), side):
        x = embeddings[positions[start:stop]].astype(np.float32)
        pairs: list[tuple[int, int, np.float32]] = []
        for first, last in spans(stop, side):
            cosines = x @ embeddings[positions[first:last]].astype(np.float32).T
            row, column = np.nonzero(cosines >= limit)
            pairs += zip(start + row, first + column, cosines[row, column])
        for later, earlier, cosine in sorted(pairs):
            if earlier < later:
                yield int(earlier), int(later), float(cosine)
