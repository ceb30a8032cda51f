"""1:N: each probe is looked for in a gallery that may or may not have its subject.

- rank-k: share of the probes with a mate in the gallery whose mate is among the k best.
- TPIR at FPIR f: share of those whose mate is the best and scores above the threshold, where the threshold accepts the
  best score of at most f of the probes without a mate.

insightface has two evaluations of this, which disagree. Its IJB_1N joins both galleries, so that no probe is
without a mate, and takes its threshold from scores of mated probes: its "TPIR" is another thing and is not computed
here. Its ijb_evals searches each gallery, as the IJB papers do; this is the same but that its threshold
accepts one probe less than f allows. Its means are kept: the ranks' over all mated probes of both galleries together,
TPIR's over the galleries. A score that equals the mate's counts as better than the mate: a model that gives the
same embedding to all has rank-1 zero, not a hundred percent.

Shapes: Q probes, M gallery templates, E embedding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .verification import allowed

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)
CHUNK = 1024  # probes: 7 MB of scores against IJB-C's galleries


class Identification(NamedTuple):
    """`mated` and `unmated` count the probes; `hits`: by rank, probes whose mate is among so many best; `tpir`: by
    FPIR, None without unmated probes."""

    mated: int
    unmated: int
    hits: dict[int, int]
    tpir: dict[float, float] | None

    def rank(self, number: int) -> float:
        """Share of the mated probes whose mate is among the `number` best."""
        return self.hits[number] / self.mated


class Found(NamedTuple):
    """Of each probe (Q,): float32 score of its mate (-inf without one) and of the best other template; `place` int64 of
    the mate from 1."""

    mate: np.ndarray
    other: np.ndarray
    place: np.ndarray


def identify(probes: np.ndarray, gallery: np.ndarray, mates: np.ndarray, bar: Any) -> Identification:
    """The search of probes (Q, E) in a gallery (M, E), both float32 of length 1; `mates` (Q,): rows of the gallery, -1
    for none. `bar` is told how many probes are done.

    Raises ValueError if no probe has a mate.
    """
    mated = mates >= 0
    if not mated.any():
        raise ValueError("no probe has its subject in the gallery")
    found = search(probes, gallery, mates, bar)
    hits = {rank: int(np.sum(found.place[mated] <= rank)) for rank in RANKS}
    return Identification(int(mated.sum()), int(np.sum(~mated)), hits, tpirs(found, mated))


def search(probes: np.ndarray, gallery: np.ndarray, mates: np.ndarray, bar: Any) -> Found:
    """Every probe against every template of the gallery, CHUNK probes at a time."""
    mate, other = np.full((2, len(probes)), -np.inf, np.float32)
    place = np.zeros(len(probes), np.int64)
    for start in range(0, len(probes), CHUNK):
        part = slice(start, start + CHUNK)
        scores = probes[part] @ gallery.T
        mated = np.flatnonzero(mates[part] >= 0)
        columns = mates[part][mated]
        mate[part][mated] = scores[mated, columns]
        scores[mated, columns] = -np.inf
        other[part] = scores.max(axis=1)
        place[part] = 1 + np.sum(scores >= mate[part][:, None], axis=1)
        bar.update(len(scores))
    return Found(mate, other, place)


def tpirs(found: Found, mated: np.ndarray) -> dict[float, float] | None:
    """TPIR by FPIR; None if every probe has a mate."""
    best = np.sort(found.other[~mated])
    if not len(best):
        return None
    first = found.mate[mated] > found.other[mated]
    thresholds = {fpir: best[len(best) - 1 - allowed(fpir, len(best))] for fpir in FPIRS}
    return {fpir: float(np.mean(first & (found.mate[mated] > value))) for fpir, value in thresholds.items()}


def mates_of(probe_subjects: np.ndarray, gallery_subjects: np.ndarray) -> np.ndarray:
    """(Q,) int64: where in a gallery each probe's subject is, -1 where it is not."""
    row_of = {subject: row for row, subject in enumerate(gallery_subjects.tolist())}
    return np.array([row_of.get(subject, -1) for subject in probe_subjects.tolist()], np.int64)


def mean(results: list[Identification]) -> Identification:
    """Both galleries as one: hits added up, TPIR averaged."""
    rates = [result.tpir for result in results if result.tpir is not None]
    tpir = {fpir: float(np.mean([rate[fpir] for rate in rates])) for fpir in FPIRS} if rates else None
    hits = {rank: sum(result.hits[rank] for result in results) for rank in RANKS}
    return Identification(sum(r.mated for r in results), sum(r.unmated for r in results), hits, tpir)
