"""Spherical k-means (Dhillon and Modha, 2001) of memory-mapped embeddings.

An iteration assigns each embedding to the center with the highest cosine, then moves every center to the mean direction
of its embeddings. Memory holds the centers, their sums, a batch, and 16 bytes per embedding.

Shapes: N embeddings, E embedding size, K clusters, P nearest clusters, n embeddings of a batch.
"""

from collections.abc import Callable, Iterator

import numpy as np

from partial_fc_tools.index.ivf import load_faiss

BATCH = 16384  # the sums, and so the bits of the centers, depend on it: a constant, whatever the free memory
SAMPLE = 256  # embeddings per cluster in the iterations; more hardly change the centers (the default of faiss)
PART = 4096  # centers that are split at a time
APART = 1 / 1024  # relative change of a center's components when it is split in two, as in faiss


def sampled(count: int, clusters: int) -> int:
    """Returns how many of ``count`` embeddings the iterations use."""
    return min(count, SAMPLE * clusters)


def find_centers(
    embeddings: np.ndarray, clusters: int, iterations: int, seed: int, advance: Callable[[int], object]
) -> np.ndarray:
    """Returns the centers of the clusters, (K, E) float32 of length 1.

    Args:
        embeddings: (N, E) float32 of length 1, N >= K.
        clusters: K.
        iterations: number of iterations.
        seed: seed of the first centers, which are K of the embeddings, and of the sample.
        advance: called with the number of embeddings of each finished batch.
    """
    # NumPy keeps the stream of `random` stable, but not the stream of `choice`.
    order = np.random.Generator(np.random.PCG64(seed)).random(len(embeddings)).argsort(kind="stable")
    centers = np.array(embeddings[np.sort(order[:clusters])])
    rows = np.sort(order[: sampled(len(embeddings), clusters)])
    sums, counts = np.empty_like(centers), np.empty(clusters, np.int64)
    for _ in range(iterations):
        sums[:], counts[:] = 0, 0
        for start in range(0, len(rows), BATCH):
            part = embeddings[rows[start : start + BATCH]]
            nearest = nearest_centers(part, centers, 1)[0][:, 0]
            by_cluster = nearest.argsort(kind="stable")
            numbers, firsts = np.unique(nearest[by_cluster], return_index=True)
            sums[numbers] += np.add.reduceat(part[by_cluster], firsts, axis=0)
            counts += np.bincount(nearest, minlength=clusters)
            advance(len(part))
        move(centers, sums, counts)
    return centers


def move(centers: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
    """Moves the centers (K, E) to the directions of the sums (K, E) of their embeddings, given their numbers (K,).

    A center without embeddings moves next to the center of a large cluster, and the two share the embeddings.
    """
    lengths = np.sqrt(np.einsum("ke,ke->k", sums, sums))
    # A center whose embeddings cancel out stays. Without a copy: the centers may take gigabytes.
    np.divide(sums, lengths[:, None], out=centers, where=lengths[:, None] > 0)
    empty = np.flatnonzero(counts == 0)
    largest = (-counts).argsort(kind="stable")[: len(empty)]
    largest = largest[counts[largest] > 1]
    shift = np.where(np.arange(centers.shape[1]) % 2, APART, -APART).astype(np.float32)
    for start in range(0, len(largest), PART):  # in parts, for the memory
        part = slice(start, min(start + PART, len(largest)))
        split = centers[largest[part]]
        for numbers, half in ((empty[part], split * (1 + shift)), (largest[part], split * (1 - shift))):
            centers[numbers] = half / np.sqrt(np.einsum("ke,ke->k", half, half))[:, None]


def nearest_centers(part: np.ndarray, centers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nearest ``count`` = P centers of n embeddings: numbers (n, P) int64 and cosines, nearest first."""
    faiss = load_faiss()
    cosines, numbers = faiss.knn(np.ascontiguousarray(part), centers, count, metric=faiss.METRIC_INNER_PRODUCT)
    return numbers, cosines


def assigned(embeddings: np.ndarray, centers: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields `nearest_centers` of all embeddings, batch by batch."""
    for start in range(0, len(embeddings), BATCH):
        yield nearest_centers(embeddings[start : start + BATCH], centers, count)
