"""Verification on held-out pairs while training: called on every rank, like all callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from partial_fc.evaluation.verification import VerificationPoint, check_kinds, effective_dimensions, verify_distances

from . import collectives
from .embedder import Embedder, PairFigures


class CallBackVerification:
    """Verifies the backbone on held-out pairs every so many updates, all ranks embedding a share.

    Args:
        embedder: see Embedder.
        sets: name -> path of its ``.bin``.
        frequent: updates between verifications.
        rank: rank 0 logs.
        writer: mxboard SummaryWriter, or None.
        find_problems: (name of a set, VerificationPoint) -> what is wrong with the training, a sentence each; or None.
        suggestion: logged after them.

    Attributes:
        history: name -> VerificationPoints, one for each verification.
        figures: name -> PairFigures of the last one.
    """

    def __init__(
        self,
        embedder: Embedder,
        sets: dict[str, str],
        frequent: int,
        rank: int,
        writer=None,
        find_problems: Callable[[str, VerificationPoint], list[str]] | None = None,
        suggestion: str = "",
    ):
        self.embedder = embedder
        self.sets = sets
        self.frequent = frequent
        self.rank = rank
        self.writer = writer
        self.find_problems = find_problems
        self.suggestion = suggestion
        self.history: dict[str, list[VerificationPoint]] = {name: [] for name in sets}
        self.figures: dict[str, PairFigures] = {}

    def __call__(self, param) -> None:
        if param.num_update % self.frequent == 0:
            self.verify_all(param.num_update)

    def prepare(self) -> None:
        """Reads every set now, so that what is wrong with one is told before a training has begun.

        Raises:
            JobError: on every rank, where a file or an image is damaged, or pairs cannot be verified on.
        """
        for name, path in self.sets.items():
            issame = self.embedder.prepare(name, path).issame
            collectives.run_on_all_ranks(f"check.{name}", partial(check_kinds, issame, path))

    def verify_all(self, num_update: int) -> dict[str, float]:
        """Verifies every set now, unless that was done at this update already.

        Returns:
            name -> accuracy.

        Raises:
            JobError: on every rank, where a file or an image is damaged, or an embedding is not finite.
        """
        for name, path in self.sets.items():
            if name not in self.figures or self.history[name][-1].num_update != num_update:
                self._verify(name, path, num_update)
        return {name: self.history[name][-1].accuracy for name in self.sets}

    def best(self, name: str) -> float:
        """The highest accuracy so far; that of the untrained network counts where there is no other."""
        points = self.history[name]
        return max(point.accuracy for point in [point for point in points if point.num_update] or points)

    def restore(self, history: dict[str, list]) -> None:
        """Goes on where ``history`` was saved; sets that are no longer verified on are left out."""
        for name in self.history.keys() & history.keys():
            # Points of a checkpoint of another version, which had other fields, are left out.
            whole = [point for point in history[name] if len(point) == len(VerificationPoint._fields)]
            self.history[name] = [VerificationPoint(*point) for point in whole]

    def _verify(self, name: str, path: str, num_update: int) -> None:
        start = time.perf_counter()
        figures = self.embedder(name, path)
        result = collectives.run_on_all_ranks(
            f"verify.{name}", lambda: verify_distances(figures.distance, figures.issame)
        )
        dimensions = effective_dimensions(figures.distance, figures.issame)
        seconds = time.perf_counter() - start
        point = VerificationPoint(num_update, *result, figures.xnorm, dimensions, figures.agreement, seconds)
        history = self.history[name]
        if history and history[-1].num_update == num_update:
            history.pop()  # of a training that has gone on from here
        history.append(point)
        self.figures[name] = figures
        if self.rank == 0:
            self._report(name, point)

    def _report(self, name: str, point: VerificationPoint) -> None:
        best = self.best(name)
        logging.info(
            "[%s][%d] Accuracy-Flip: %.5f+-%.5f   TAR@FAR=%g: %.5f   XNorm: %.4f   Best: %.5f   "
            "Dimensions: %.1f   Mode agreement: %.3f   in %.1f s",
            name,
            point.num_update,
            point.accuracy,
            point.std,
            point.far,
            point.tar_at_far,
            point.xnorm,
            best,
            point.dimensions,
            point.agreement,
            point.seconds,
        )
        problems = self.find_problems(name, point) if self.find_problems else []
        for line in [*problems, self.suggestion] if problems else ():
            logging.warning("[%s][%d] %s", name, point.num_update, line)
        if self.writer is not None:
            for metric, value in {**point._asdict(), "best": best}.items():
                if metric not in ("num_update", "far"):
                    self.writer.add_scalar(f"verification/{name}/{metric}", value, point.num_update)
