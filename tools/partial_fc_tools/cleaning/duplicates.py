"""Rule: an image is a near-duplicate if an earlier image of its class is as near to it as an altered copy would be.

Wrong labels and split classes have been corrected by then. The earliest image stays; an image is removed if it is near
one that stays.

Shapes: N images, D near-duplicates, n images of a class, E embedding.
"""

import numpy as np

from partial_fc.utils.progress import progress

from .centers import Classes
from .nearest import spans, tile_side


def near_duplicates(
    embeddings: np.ndarray, classes: np.ndarray, limit: float, memory: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds images with a cosine of at least ``limit`` to an earlier image of their class that stays.

    Args:
        embeddings: (N, E) float16 or float32 of length 1.
        classes: (N,) int64, -1 for images that have been removed.
        limit: lowest cosine of near-duplicates.
        memory: bytes to use.

    Returns:
        The near-duplicates (D,) int64, the image that stays for each, and their cosines float32.
    """
    images = np.flatnonzero(classes >= 0)
    by_class = Classes.of(classes[images])
    side = tile_side(memory, embeddings.shape[1])
    kept_for, cosines = np.full(len(classes), -1), np.zeros(len(classes), np.float32)
    with progress(len(images), "image", "finding near-duplicates") as bar:
        for begin, end in zip(by_class.bounds[:-1], by_class.bounds[1:]):
            positions = images[by_class.order[begin:end]]
            near, cosines[positions] = near_earlier(embeddings, positions, limit, side)
            kept_for[positions] = np.where(near >= 0, positions[near], -1)
            bar.update(len(positions))
    removed = np.flatnonzero(kept_for >= 0)
    return removed, kept_for[removed], cosines[removed]


def near_earlier(
    embeddings: np.ndarray, positions: np.ndarray, limit: float, side: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each of the images ``positions`` (n,), finds the first near one before it that stays, and their cosine.

    Returns:
        (n,) int64 indices into ``positions``, -1 for an image that stays; (n,) float32.
    """
    kept_for, cosine = np.full(len(positions), -1), np.zeros(len(positions), np.float32)
    for start, stop in spans(len(positions), side):
        x = embeddings[positions[start:stop]].astype(np.float32)
        for first, last in spans(stop, side):
            cosines = x @ embeddings[positions[first:last]].astype(np.float32).T
            near = np.tril(cosines >= limit, start - first - 1)  # to earlier images only
            # In order, because a row depends on which earlier images stay.
            for row in np.flatnonzero(near.any(axis=1) & (kept_for[start:stop] < 0)).tolist():
                staying = np.flatnonzero(near[row] & (kept_for[first:last] < 0))
                if len(staying):
                    kept_for[start + row], cosine[start + row] = first + staying[0], cosines[row, staying[0]]
    return kept_for, cosine
