"""1:N identification: searches probes in a gallery that may or may not contain their subject.

The mate of a probe is the gallery template of the same subject; a probe without one is unmated.

- rank-k: share of the mated probes whose mate is among the k best scores.
- TPIR at FPIR f: share of the mated probes whose mate has the best score and exceeds the threshold, where at most a
  share f of the unmated probes has a best score above the threshold.

insightface has two evaluations, which disagree. IJB_1N joins both galleries, so every probe is mated, and derives its
threshold from scores of mated probes: its "TPIR" is another measure, which is not computed here. ijb_evals searches
each gallery, as in the IJB papers; this module does the same, except that ijb_evals accepts one unmated probe less than
f allows. The means are those of ijb_evals: ranks over the mated probes of both galleries, TPIR over the galleries. A
score equal to that of the mate ranks before it: a model that returns a constant has rank-1 0 %, not 100 %.

Shapes: Q probes, M gallery templates, E embedding.
"""

from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.roc import highest_refused

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)
CHUNK = 1024  # probes: 7 MB of scores against IJB-C's galleries


class Identification(NamedTuple):
    """Result of a search."""

    mated: int  # number of probes with a mate
    unmated: int  # number of probes without a mate
    hits: dict[int, int]  # by rank k: number of probes whose mate is among the k best
    tpir: dict[float, float] | None  # TPIR by FPIR; None without unmated probes

    def rank(self, number: int) -> float:
        """Returns the share of the mated probes whose mate is among the ``number`` best."""
        return self.hits[number] / self.mated


def identify(probes: np.ndarray, gallery: np.ndarray, mates: np.ndarray, bar: Any) -> Identification:
    """Searches probes in a gallery, see `search`. Raises ValueError if no probe has a mate."""
    mated = mates >= 0
    if not mated.any():
        raise ValueError("no probe has its subject in the gallery")
    mate, other, ranks = search(probes, gallery, mates, bar)
    hits = {rank: int(np.sum(ranks[mated] <= rank)) for rank in RANKS}
    return Identification(int(mated.sum()), int(np.sum(~mated)), hits, tpirs(mate, other, mated))


def search(
    probes: np.ndarray, gallery: np.ndarray, mates: np.ndarray, bar: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compares every probe with every gallery template, CHUNK probes at a time.

    Args:
        probes: (Q, E) float32 of length 1.
        gallery: (M, E) float32 of length 1.
        mates: (Q,) gallery row of each probe's mate, -1 without one.
        bar: Progress bar, updated by the number of finished probes.

    Returns:
        (Q,) float32 score of the mate, -inf without one; (Q,) float32 best score of the other templates; (Q,) int64
        rank of the mate, from 1.
    """
    mate, other = np.full((2, len(probes)), -np.inf, np.float32)
    rank = np.zeros(len(probes), np.int64)
    for start in range(0, len(probes), CHUNK):
        part = slice(start, start + CHUNK)
        scores = probes[part] @ gallery.T
        mated = np.flatnonzero(mates[part] >= 0)
        columns = mates[part][mated]
        mate[part][mated] = scores[mated, columns]
        scores[mated, columns] = -np.inf
        other[part] = scores.max(axis=1)
        rank[part] = 1 + np.sum(scores >= mate[part][:, None], axis=1)
        bar.update(len(scores))
    return mate, other, rank


def tpirs(mate: np.ndarray, other: np.ndarray, mated: np.ndarray) -> dict[float, float] | None:
    """Returns TPIR by FPIR from the scores of `search`; None if every probe has a mate."""
    best = np.sort(other[~mated])
    if not len(best):
        return None
    first = mate[mated] > other[mated]
    return {fpir: float(np.mean(first & (mate[mated] > highest_refused(best, fpir)))) for fpir in FPIRS}


def mean(results: list[Identification]) -> Identification:
    """Combines the results of several galleries: adds the hits and averages TPIR."""
    rates = [result.tpir for result in results if result.tpir is not None]
    tpir = {fpir: float(np.mean([rate[fpir] for rate in rates])) for fpir in FPIRS} if rates else None
    hits = {rank: sum(result.hits[rank] for result in results) for rank in RANKS}
    return Identification(sum(r.mated for r in results), sum(r.unmated for r in results), hits, tpir)
