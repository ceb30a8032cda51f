"""Rule: an image that is as near to an earlier one of its class as an altered copy of it would be is a near-duplicate.

Images with wrong labels and split classes are in their true classes by then. The earliest image of those that are near
each other stays; an image is removed if one that stays is near.

Shapes: N images, D near-duplicates, n images of a class, E embedding.
"""

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
    """Finds near-duplicates within classes: images whose cosine to an earlier one that stays is at least ``limit``.

    ``embeddings``: (N, E) float16 or float32 of length 1; ``classes``: (N,) int64, -1 for images that are left out;
    ``memory``: bytes that may be used; ``bar`` counts finished images.
    """
    images = np.flatnonzero(classes >= 0)
    by_class = Classes.of(classes[images])
    side = tile_side(memory, embeddings.shape[1])
    removed = [Duplicates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    for begin, end in zip(by_class.bounds[:-1], by_class.bounds[1:]):
        positions = images[by_class.order[begin:end]]
        kept, cosines = near_earlier(embeddings, positions, limit, side)
        of_class = np.flatnonzero(kept >= 0)
        removed.append(Duplicates(positions[of_class], positions[kept[of_class]], cosines[of_class]))
        bar.update(len(positions))
    return Duplicates(*(np.concatenate(column) for column in zip(*removed)))


def near_earlier(
    embeddings: np.ndarray, positions: np.ndarray, limit: float, side: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each image of ``positions`` (n,) the first one before it that is near and stays, and their cosine.

    Returns:
        (n,) int64 indices of ``positions``, -1 for an image that stays itself; (n,) float32.
    """
    kept, cosine = np.full(len(positions), -1), np.zeros(len(positions), np.float32)
    for start, stop in spans(len(positions), side):
        x = embeddings[positions[start:stop]].astype(np.float32)
        for first, last in spans(stop, side):
            cosines = x @ embeddings[positions[first:last]].astype(np.float32).T
            near = np.tril(cosines >= limit, start - first - 1)  # of earlier images
            # In order: which of the earlier ones stay is known by then.
            for row in np.flatnonzero(near.any(axis=1) & (kept[start:stop] < 0)).tolist():
                staying = np.flatnonzero(near[row] & (kept[first:last] < 0))
                if len(staying):
                    kept[start + row], cosine[start + row] = first + staying[0], cosines[row, staying[0]]
    return kept, cosine
