"""Adaptive symmetric normalization (AS-norm): scores relative to scores with the nearest items of a cohort.

With the mean m and the standard deviation d of an item's T highest scores with the cohort, the score s of items x and y
becomes ((s - m(x)) / d(x) + (s - m(y)) / d(y)) / 2 (Matejka et al., Interspeech 2017, "adaptive S-norm 1", as in
wespeaker). The cohort has no items of the classes to evaluate.

Shapes: N items, K items of the cohort, E embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TOP = 300  # T, as in wespeaker's recipes
BLOCK = 4_000_000  # scores with the cohort at a time, 16 MB


class CohortStatistics(NamedTuple):
    """Mean and standard deviation of each item's highest scores with the cohort."""

    mean: np.ndarray  # (N,) float32
    deviation: np.ndarray  # (N,) float32

    @classmethod
    def measure(cls, embeddings: np.ndarray, cohort: np.ndarray, top: int = TOP) -> CohortStatistics:
        """Compares all items with the cohort.

        Args:
            embeddings: (N, E) float32 of length 1.
            cohort: (K, E) float32 of length 1.
            top: T; a smaller cohort is used entirely, which is S-norm.

        Raises:
            ValueError: The embeddings differ in size, T is below 2, or an item's T scores are equal or not finite.
        """
        if embeddings.shape[1] != cohort.shape[1]:
            raise ValueError(
                f"the cohort has embeddings of dimension {cohort.shape[1]} instead of {embeddings.shape[1]}: use the "
                "same model"
            )
        top, statistics = min(top, len(cohort)), np.empty((2, len(embeddings)), np.float32)
        if top < 2:
            raise ValueError(f"AS-norm needs two or more items of the cohort, got {top}: use a larger cohort")
        step = max(1, BLOCK // len(cohort))
        for start in range(0, len(embeddings), step):
            scores = embeddings[start : start + step] @ cohort.T
            highest = np.partition(scores, len(cohort) - top, axis=1)[:, len(cohort) - top :].astype(np.float64)
            statistics[:, start : start + step] = highest.mean(axis=1), highest.std(axis=1)
        if len(wrong := np.flatnonzero(~(statistics[1] > 0))):  # NaN is wrong as well
            raise ValueError(
                f"the scores of item {wrong[0]} with the {top} nearest items of the cohort are equal or not finite: "
                "use a larger cohort"
            )
        return cls(*statistics)

    def normalize(self, scores: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """Normalizes scores in place. ``left`` and ``right`` are the numbers of their items, broadcast."""
        half = 0.5 / self.deviation
        scores *= half[left] + half[right]
        scores -= (half * self.mean)[left] + (half * self.mean)[right]
