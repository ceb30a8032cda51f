"""1:N identification: searches probes in a gallery that may or may not contain their subject.

The mate of a probe is the gallery template of the same subject; a probe without one is unmated.

- rank-k: fraction of the mated probes whose mate is among the k best scores.
- TPIR at FPIR f: fraction of the mated probes whose mate has the best score and exceeds the threshold. The threshold is
  the lowest one that at most a fraction f of the unmated probes exceeds.

insightface has two evaluations, which disagree. IJB_1N joins both galleries, so that every probe is mated, and derives
its threshold from scores of mated probes; its "TPIR" is another measure, not computed here. ijb_evals
searches each gallery, as in the IJB papers. This module does the same, except that ijb_evals accepts one unmated probe
less than f allows. The means are computed as in ijb_evals: ranks over the mated probes of both galleries, TPIR over
the galleries. A score equal to the mate's score ranks before it, so a model that returns a constant has a rank-1 of
0 %, not 100 %.

Shapes: Q probes, M gallery templates, E embedding.
"""

from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.items import EmbeddedItems, Workers
from partial_fc.evaluation.metrics.open_set import OpenSet
from partial_fc.evaluation.ranking import rank

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)


class Identification(NamedTuple):
    """Result of a search."""

    mated: int  # number of probes with a mate
    unmated: int  # number of probes without a mate
    hits: dict[int, int]  # by rank k: number of probes whose mate is among the k best
    tpir: dict[float, float] | None  # TPIR by FPIR; None without unmated probes

    def rank(self, number: int) -> float:
        """Returns the fraction of the mated probes whose mate is among the ``number`` best."""
        return self.hits[number] / self.mated


def identify(probes: np.ndarray, gallery: np.ndarray, mates: np.ndarray, bar: Any) -> Identification:
    """Compares every probe with every gallery template.

    Args:
        probes: (Q, E) float32 of length 1.
        gallery: (M, E) float32 of length 1.
        mates: (Q,) gallery row of each probe's mate, -1 for an unmated probe.
        bar: progress bar, updated by the number of finished probes.

    Raises:
        ValueError: No probe has a mate.
    """
    mated, entries = mates >= 0, len(gallery)
    if not mated.any():
        raise ValueError("no probe has its subject in the gallery")
    labels = np.concatenate([np.arange(entries), np.where(mated, mates, entries)])
    items = EmbeddedItems(np.concatenate([gallery, probes]), labels, np.arange(len(labels)) >= entries)
    ranking = rank(items, Workers(advance=bar.update))
    tpir = None
    if not mated.all():
        rates, _ = OpenSet(FPIRS).statistic(ranking)
        tpir = {fpir: 1 - fnir for fpir, fnir in zip(FPIRS, rates(None))}
    hits = {number: int(ranking.hits(number).sum()) for number in RANKS}
    return Identification(int(mated.sum()), int(np.sum(~mated)), hits, tpir)


def mean(results: list[Identification]) -> Identification:
    """Combines the results of several galleries: adds the hits and averages TPIR."""
    rates = [result.tpir for result in results if result.tpir is not None]
    tpir = {fpir: float(np.mean([rate[fpir] for rate in rates])) for fpir in FPIRS} if rates else None
    hits = {rank: sum(result.hits[rank] for result in results) for rank in RANKS}
    return Identification(sum(r.mated for r in results), sum(r.unmated for r in results), hits, tpir)
