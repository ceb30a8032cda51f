"""Verification of pairs of any inputs: are both items of the same class?

Shapes: P pairs, n items of this rank, E embedding; items 2p and 2p + 1 form pair p.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partial_fc.data.batch import Inputs
from partial_fc.distributed.collectives import Collectives
from partial_fc.evaluation.collapse import find_problems
from partial_fc.evaluation.verification import (
    VerificationPoint,
    check_kinds,
    describe_tar,
    effective_dimensions,
    verify_distances,
)
from partial_fc.evaluation.words import OTHERS
from partial_fc.layer.sharding import shard_of
from partial_fc.training.embedder import Embedder, Read
from partial_fc.utils.distances import squared_distances

from .evaluation import Evaluation


class PairShare(NamedTuple):
    """A rank's share of the pairs."""

    issame: np.ndarray  # (P,) bool, for the entire set
    num_items: int  # n, both items of each pair
    read: Read  # (start, stop) in 0 .. n -> items of this rank


class PairFigures(NamedTuple):
    """Figures computed from the embeddings of a set, the same on every rank."""

    distance: np.ndarray  # (P,) float64, squared distance of each pair's normalized embeddings, summed over the views
    issame: np.ndarray  # (P,) bool
    xnorm: float  # mean norm of the embeddings of all views
    agreement: float  # mean cosine between an item's embeddings in evaluation and in training mode


class PairVerification(Evaluation):
    """Ten-fold verification, see partial_fc.evaluation.verification. The ranks exchange only two numbers per pair.

    A subclass has `load`, as `ItemPairs` does.

    Attributes:
        kinds: names of the two kinds of pairs, for reports.
        last: PairFigures of the last verification in this process; None before the first one.
    """

    figures = tuple(name for name in VerificationPoint._fields if name not in ("num_update", "seconds"))
    shares = ("accuracy", "std", "tar_at_far", "measured_far", "tar_interpolated")
    point_type = VerificationPoint
    kinds = OTHERS.kinds

    def __init__(self) -> None:
        self.last: PairFigures | None = None

    def load(self, name: str, collectives: Collectives) -> PairShare:
        """Returns and checks this rank's share of the pairs; both items of a pair are in the same share.

        Raises:
            OSError, ValueError: The pairs cannot be read; the message names the set.
        """
        raise NotImplementedError

    def views(self, inputs: Inputs) -> Sequence[Inputs]:
        """Returns views of the items, such as mirror images; the embeddings of an item's views are added."""
        return [inputs]

    def shown_items(self) -> Sequence[bytes | str] | None:
        """Returns all 2P items as encoded images or texts, to show the hardest pairs in reports; None shows none.

        Called on rank 0.

        Raises:
            OSError, ValueError: The items cannot be read again.
        """
        return None

    def prepare(self, name: str, collectives: Collectives) -> None:
        """See Evaluation. Collectives: all-gathers ``status.read.<name>`` and ``status.check.<name>``."""
        self.share = collectives.run_on_all_ranks(f"read.{name}", lambda: self.load(name, collectives))
        source = self.paths[0] if self.paths else name
        collectives.run_on_all_ranks(f"check.{name}", partial(check_kinds, self.share.issame, source))

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """See Evaluation.

        Collectives: those of embed_share, all-gathers ``status.compare.<name>``, ``pairs.<name>`` and
        ``status.verify.<name>``.
        """
        name, collectives, share = embedder.name, embedder.collectives, self.share
        parts = embedder.embed_share(share.num_items, share.read, partial(self._compare, embedder), group_size=2)
        first = min(embedder.step(group_size=2), share.num_items)
        compared = collectives.run_on_all_ranks(f"compare.{name}", lambda: embedder.compare_modes(share.read(0, first)))
        of_rank = (np.concatenate([np.empty((0, 2)), *parts]), compared)  # a rank may have no pairs
        shares, agreements = zip(*collectives.gather_object(f"pairs.{name}", of_rank))
        distance, lengths = np.concatenate(shares).T
        agreement = float(np.concatenate(agreements).mean())
        self.last = PairFigures(distance, share.issame, float(lengths.mean()), agreement)
        result = collectives.run_on_all_ranks(f"verify.{name}", lambda: verify_distances(distance, share.issame))
        dimensions = effective_dimensions(distance, share.issame)
        return {**result._asdict(), "xnorm": self.last.xnorm, "dimensions": dimensions, "agreement": agreement}

    def problems(self, point: Any, baselines: Mapping[str, float]) -> list[str]:
        """See Evaluation; also finds a collapse."""
        return [*find_problems(point, self.kinds[1]), *super().problems(point, baselines)]

    def examples(self, count: int) -> Inputs | None:
        """See Evaluation."""
        return self.share.read(0, min(count, self.share.num_items))

    def metadata(self, point: Any) -> dict[str, str]:
        """See Evaluation."""
        return {"verification_threshold": repr(point.threshold)}

    def log_lines(self, point: Any, best: float) -> list[str]:
        """See Evaluation."""
        return [  # the original trainers have the first three
            f"XNorm: {point.xnorm:f}",
            f"Accuracy-Flip: {point.accuracy:1.5f}+-{point.std:1.5f}",
            f"Accuracy-Highest: {best:1.5f}",
            f"{describe_tar(point, int(np.sum(~self.share.issame)))}   Dimensions: {point.dimensions:.1f}   "
            f"Train/eval agreement: {point.agreement:.3f}   in {point.seconds:.1f} s",
        ]

    def _compare(self, embedder: Embedder, inputs: Inputs) -> np.ndarray:
        """Returns (n / 2, 2) float64: squared distance and mean embedding norm of each pair."""
        embeddings = np.stack([embedder(view) for view in self.views(inputs)])
        lengths = np.linalg.norm(embeddings, axis=2).mean(axis=0)
        total = embeddings.sum(axis=0)
        return np.stack([squared_distances(total[0::2], total[1::2]), lengths.reshape(-1, 2).mean(axis=1)], axis=1)


class ItemPairs(PairVerification):
    """Verification of pairs that every rank can read.

    Args:
        issame: (P,) bool.
        read: (start, stop) in 0 .. 2P -> items; items 2p and 2p + 1 form pair p.
    """

    def __init__(self, issame: np.ndarray, read: Read):
        super().__init__()
        self.issame, self.read = np.asarray(issame, bool), read

    def load(self, name: str, collectives: Collectives) -> PairShare:
        """See PairVerification."""
        shard = shard_of(len(self.issame), collectives.rank, collectives.size)
        first = 2 * shard.start
        return PairShare(self.issame, 2 * shard.size, lambda start, stop: self.read(first + start, first + stop))
