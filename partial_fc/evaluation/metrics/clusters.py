"""Normalized mutual information (NMI) of classes and clusters.

Spherical k-means makes as many clusters as there are classes, from centers drawn as in k-means++. NMI is
2 I / (H + K), where I is the mutual information of an item's class and cluster, and H and K are their entropies.

Shapes: N items, C classes and clusters, E embedding.
"""

from collections.abc import Callable, Sequence

import numpy as np

from partial_fc.evaluation.items import SCORES, EmbeddedItems, Workers
from partial_fc.utils.distances import normalized

from .metric import Metric, Statistic

ITERATIONS = 20


class MutualInformation(Metric):
    """NMI of all items with a label."""

    figures = ("nmi",)

    @staticmethod
    def source(items: EmbeddedItems, workers: Workers) -> np.ndarray:
        """Returns rows (3,) int64 of class, cluster, and their number of items, if any. Rank 0 computes them."""

        def on_rank_zero() -> np.ndarray | None:
            if workers.rank:
                return None
            labeled = np.flatnonzero(items.classes >= 0)
            embeddings = items.embeddings if len(labeled) == len(items.embeddings) else items.embeddings[labeled]
            clusters = spherical_kmeans(embeddings, items.num_classes, workers.advance)
            cells, counts = np.unique(items.classes[labeled] * items.num_classes + clusters, return_counts=True)
            return np.stack([*divmod(cells, items.num_classes), counts], axis=1)

        table: np.ndarray = workers.together(on_rank_zero)[0]
        return table

    def statistic(self, result: np.ndarray) -> tuple[Statistic, int]:
        """See Metric."""
        classes, clusters, counts = result.T

        def information(times: np.ndarray | None) -> Sequence[float]:
            joint = counts if times is None else counts * times[classes]
            joint = joint / joint.sum()
            entropies = [_entropy(np.bincount(side, joint)) for side in (classes, clusters)]
            return [2 * (1 - _entropy(joint) / sum(entropies)) if sum(entropies) else np.nan]

        return information, int(classes.max()) + 1


def _entropy(shares: np.ndarray) -> float:
    present = shares[shares > 0]
    return float(-(present * np.log(present)).sum())


def spherical_kmeans(embeddings: np.ndarray, count: int, advance: Callable[[int], object]) -> np.ndarray:
    """Clusters embeddings (N, E) of length 1; returns the cluster (N,) of each.

    Args:
        embeddings: float32.
        count: C, at most N.
        advance: called with 1 after each center and each iteration.
    """
    random = np.random.Generator(np.random.PCG64(0))
    centers = np.empty((count, embeddings.shape[1]), np.float32)
    distance = np.ones(len(embeddings))  # to the nearest center so far, squared and halved
    for center in range(count):
        total = distance.cumsum()
        # Without a distance left, all embeddings are centers already, and any of them will do.
        drawn = np.searchsorted(total, random.random() * total[-1], side="right") if total[-1] else center
        centers[center] = embeddings[min(drawn, len(embeddings) - 1)]
        np.minimum(distance, np.maximum(0, 1 - embeddings @ centers[center]), out=distance)
        advance(1)
    nearest = np.full(len(embeddings), -1)
    step = max(1, SCORES // count)
    for _ in range(ITERATIONS):
        before = nearest
        blocks = range(0, len(embeddings), step)
        nearest = np.concatenate([(embeddings[start : start + step] @ centers.T).argmax(axis=1) for start in blocks])
        advance(1)
        if np.array_equal(nearest, before):
            break
        order = np.argsort(nearest, kind="stable")
        present, starts = np.unique(nearest[order], return_index=True)
        centers[present] = normalized(np.add.reduceat(embeddings[order], starts, axis=0))
    return nearest
