"""Verification on held-out pairs during training; called on every rank, like all callbacks."""

import logging
import os
import time
from collections.abc import Callable
from functools import partial

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.validation_set import raw_pixel_distances
from partial_fc.evaluation.verification import VerificationPoint, check_kinds, effective_dimensions, verify_distances

from .embedder import Embedder
from .results import PairFigures, best_point
from .trackers import Trackers


class CallBackVerification:
    """Verifies the backbone on held-out pairs every ``frequent`` updates; each rank embeds a share of the pairs.

    Args:
        embedder: see Embedder.
        sets: name -> path of its ``.bin``.
        frequent: updates between verifications.
        rank: of this process; rank 0 logs.
        trackers: that get the figures, or None.
        find_problems: name of a set -> problems that its last verification shows, one sentence each; or None.
        suggestion: logged after the problems.

    Attributes:
        sets: as above, without the sets that `prepare` did not find.
        missing: paths of the sets that some host does not have.
        history: name -> VerificationPoints, one for each verification.
        figures: name -> PairFigures of the last verification.
    """

    def __init__(
        self,
        embedder: Embedder,
        sets: dict[str, str],
        frequent: int,
        rank: int,
        trackers: Trackers | None = None,
        find_problems: Callable[[str], list[str]] | None = None,
        suggestion: str = "",
    ):
        self.embedder = embedder
        self.collectives = embedder.collectives
        self.sets = dict(sets)
        self.missing: list[str] = []
        self.frequent = frequent
        self.rank = rank
        self.trackers = trackers
        self.find_problems = find_problems
        self.suggestion = suggestion
        self.history: dict[str, list[VerificationPoint]] = {name: [] for name in sets}
        self.figures: dict[str, PairFigures] = {}

    def __call__(self, param) -> None:
        """Verifies on all sets every ``frequent`` updates."""
        if param.num_update % self.frequent == 0:
            self.verify_all(param.num_update)

    def catch_up(self, num_update: int) -> None:
        """Verifies the sets that are missing at the update of a checkpoint: the training was asked to stop there."""
        if num_update and num_update % self.frequent == 0:
            for name, path in self.sets.items():
                if not self._is_verified(name, num_update):
                    self._verify(name, path, num_update)

    def prepare(self) -> None:
        """Reads every set, so that a damaged one is reported before the training starts.

        A set that one host does not have is left out on all ranks, because all ranks embed it together.

        Collectives: all-gather ``validation_sets``; for each set those of Embedder.prepare, and all-gather
        ``status.check.<name>``.

        Raises:
            JobError: On every rank, if a file or an image is damaged, or if verification is not defined for the pairs.
        """
        absent = self.collectives.gather_object(
            "validation_sets", [p for p in self.sets.values() if not os.path.isfile(p)]
        )
        self.missing = sorted(set().union(*absent))
        for name in [name for name, path in self.sets.items() if path in self.missing]:
            del self.sets[name], self.history[name]
        for name, path in self.sets.items():
            issame = self.embedder.prepare(name, path).issame
            self.collectives.run_on_all_ranks(f"check.{name}", partial(check_kinds, issame, path))

    def verify_all(self, num_update: int) -> dict[str, float]:
        """Verifies every set that was not yet verified at this update.

        Returns:
            name -> accuracy.

        Raises:
            JobError: On every rank, if a file or an image is damaged, or an embedding is not finite.
            StopRequested: On every rank, if one was asked to stop.
        """
        for name, path in self.sets.items():
            if name not in self.figures or not self._is_verified(name, num_update):
                self._verify(name, path, num_update)
        return {name: self.history[name][-1].accuracy for name in self.sets}

    def measure_baselines(self, image_size: int) -> dict[str, float]:
        """Measures the accuracy without training on the first set, to compare the result with.

        Collectives: those of verify_all, all-gather ``status.raw_pixels``.

        Returns:
            ``raw_pixels`` and ``untrained`` -> accuracy, on rank 0; empty on other ranks, and without a set.
        """
        if not self.sets:
            return {}
        name, path = next(iter(self.sets.items()))
        untrained = self.verify_all(0)[name]
        raw_pixels = self.collectives.on_rank_zero("raw_pixels", _raw_pixel_accuracy, path, image_size)
        if raw_pixels is None:  # another rank than 0
            return {}
        logging.info("[%s] without training: raw pixels %.5f, untrained network %.5f", name, raw_pixels, untrained)
        return {"raw_pixels": raw_pixels, "untrained": untrained}

    def best(self, name: str) -> float:
        """Returns the highest accuracy so far; that of the untrained network counts only if there is no other."""
        return best_point(self.history[name]).accuracy

    def restore(self, history: dict[str, list]) -> None:
        """Restores the history that a checkpoint holds, without sets that are no longer verified."""
        for name in self.history.keys() & history.keys():
            # Points of another version had other fields.
            values = [value for value in history[name] if len(value) == len(VerificationPoint._fields)]
            self.history[name] = [VerificationPoint(*value) for value in values]

    def _is_verified(self, name: str, num_update: int) -> bool:
        points = self.history[name]
        return bool(points) and points[-1].num_update == num_update

    def _verify(self, name: str, path: str, num_update: int) -> None:
        start = time.perf_counter()
        figures = self.embedder(name, path)
        result = self.collectives.run_on_all_ranks(
            f"verify.{name}", lambda: verify_distances(figures.distance, figures.issame)
        )
        dimensions = effective_dimensions(figures.distance, figures.issame)
        seconds = time.perf_counter() - start
        point = VerificationPoint(num_update, *result, figures.xnorm, dimensions, figures.agreement, seconds)
        if self._is_verified(name, num_update):  # as after resuming from here
            self.history[name].pop()
        self.history[name].append(point)
        self.figures[name] = figures
        if self.rank == 0:
            self._report(name, point)

    def _report(self, name: str, point: VerificationPoint) -> None:
        best = self.best(name)
        for line in (  # the first three are those of the original trainers
            f"XNorm: {point.xnorm:f}",
            f"Accuracy-Flip: {point.accuracy:1.5f}+-{point.std:1.5f}",
            f"Accuracy-Highest: {best:1.5f}",
            f"TAR@FAR={point.far:g}: {point.tar_at_far:.5f}   Dimensions: {point.dimensions:.1f}   "
            f"Train/eval agreement: {point.agreement:.3f}   in {point.seconds:.1f} s",
        ):
            logging.info("[%s][%d]%s", name, point.num_update, line)
        problems = self.find_problems(name) if self.find_problems else []
        for line in [*problems, self.suggestion] if problems else ():
            logging.warning("[%s][%d] %s", name, point.num_update, line)
        if self.trackers is not None:
            figures = {**point._asdict(), "best": best}
            shown = (metric for metric in figures if metric not in ("num_update", "far"))
            self.trackers.log({f"verification/{name}/{metric}": figures[metric] for metric in shown}, point.num_update)


def _raw_pixel_accuracy(path: str, image_size: int) -> float:
    """Returns the verification accuracy of the pixels themselves, without any network."""
    images, issame = read_pairs(path)
    return verify_distances(raw_pixel_distances(images, image_size, path), issame).accuracy
