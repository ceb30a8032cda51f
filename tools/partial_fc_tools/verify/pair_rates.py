"""Error rates at one threshold with confidence intervals: of all pairs, of groups, and without the worst images.

A pair is accepted (judged to be the same person) if its squared distance is below the threshold.

Shapes: P pairs; images 2p and 2p + 1 form pair p.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.evaluation.roc import highest_refused, max_accepted
from partial_fc.evaluation.verification import accuracy_by_fold

Z = 1.959964  # of the normal distribution, for 95 %
CONFIDENCE = "95 %"


class Rate(NamedTuple):
    """A fraction: ``events`` in ``total`` trials."""

    events: int
    total: int

    @property
    def share(self) -> float | None:
        """The fraction; None without trials."""
        return self.events / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % score interval (JASA 22, 1927) for independent trials; (0, 1) without trials."""
        if not self.total:
            return 0.0, 1.0
        share, square = self.events / self.total, Z**2 / self.total
        center = (share + square / 2) / (1 + square)
        half = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
        return max(0.0, center - half), min(1.0, center + half)


class PairRates(NamedTuple):
    """False rejects among the pairs of one person, and false accepts among the pairs of two."""

    false_rejects: Rate
    false_accepts: Rate


def shared_threshold(distance: np.ndarray, issame: np.ndarray, far: float) -> float:
    """Returns the highest threshold that accepts at most a fraction ``far`` < 1 of the pairs of different people."""
    return -float(highest_refused(np.sort(-distance[~issame]), far))


def pair_rates(distance: np.ndarray, issame: np.ndarray, threshold: float) -> PairRates:
    """Returns the rates of pairs with distances (P,) and kinds (P,) bool."""
    accepted = distance < threshold
    same, rejected = int(issame.sum()), int((issame & ~accepted).sum())
    return PairRates(Rate(rejected, same), Rate(int((~issame & accepted).sum()), len(issame) - same))


def rates_by_group(
    distance: np.ndarray, issame: np.ndarray, groups: Sequence[str], threshold: float
) -> dict[str, PairRates]:
    """Returns the rates of each group, sorted by name; ``groups`` has the group of each of the P pairs."""
    names, group_of = np.unique(np.array(groups), return_inverse=True)
    return {
        str(name): pair_rates(distance[group_of == group], issame[group_of == group], threshold)
        for group, name in enumerate(names)
    }


def rates_by_rejection(
    distance: np.ndarray,
    issame: np.ndarray,
    quality: np.ndarray,
    images: Sequence[bytes],
    threshold: float,
    shares: Sequence[float],
) -> Mapping[float, PairRates]:
    """Returns the rates without the pairs of the worst images, for each fraction of images to reject.

    Args:
        distance, issame: (P,).
        quality: (2P,) of the images.
        images: the 2P encoded images; an image in several pairs counts once.
        threshold: the same one for all fractions.
        shares: fractions of the images, each rounded down to whole images.
    """
    ascending = np.sort(quality[list({image: row for row, image in enumerate(images)}.values())])
    lower = np.minimum(quality[0::2], quality[1::2])
    rates = {}
    for share in shares:
        kept = lower >= ascending[min(max_accepted(share, len(ascending)), len(ascending) - 1)]
        rates[share] = pair_rates(distance[kept], issame[kept], threshold)
    return rates


def correct_pairs(distance: np.ndarray, issame: np.ndarray, folds: int) -> Rate:
    """Returns the fraction of pairs judged correctly, each at the best threshold of the other folds."""
    shares, _ = accuracy_by_fold(distance, issame, folds)
    sizes = [len(part) for part in np.array_split(issame, folds)]
    return Rate(round(float(np.dot(shares, sizes))), len(issame))
