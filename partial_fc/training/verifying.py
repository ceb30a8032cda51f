"""Verification on held-out sets during training; called on every rank, like all callbacks."""

import copy
import logging
import math
import os
import time
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from partial_fc.distributed.errors import JobError

from .embedder import Embedder
from .engine import Engine
from .results import SetResult
from .tasks.evaluation import UNTRAINED, Evaluation
from .trackers import Trackers

AVERAGED = "_ema"  # suffix of the name of a set's results with the averaged weights


class CallBackVerification:
    """Verifies the backbone every ``frequent`` updates; each rank embeds a share of every set.

    Args:
        engine: engine in training; the moving average of its weights, if there is one, is verified on each set, too.
        batch_size: B, items that the engine embeds at a time.
        evaluations: name of the set -> evaluation.
        frequent: updates between verifications.
        trackers: metric loggers, or None.
        suggestion: logged after the problems that a verification shows.
        max_update: number of the last update, after which no further verification follows.

    Attributes:
        evaluations: by name; `prepare` removes sets that it does not find, and adds those of averaged weights.
        missing: paths of files that some host does not have.
        history: name -> points of Evaluation.point_type, one for each verification.
        baselines: name -> first figure of the first set; empty if they were not measured.
    """

    def __init__(
        self,
        engine: Engine,
        batch_size: int,
        evaluations: Mapping[str, Evaluation],
        frequent: int,
        trackers: Trackers | None = None,
        suggestion: str = "",
        max_update: int = 0,
    ):
        self.engine, self.collectives, self.batch_size = engine, engine.collectives, batch_size
        self.evaluations = dict(evaluations)
        self.missing: list[str] = []
        self.frequent = frequent
        self.trackers = trackers
        self.suggestion, self.max_update = suggestion, max_update
        self.history: dict[str, list[Any]] = {name: [] for name in evaluations}
        self.baselines: dict[str, float] = {}
        self._averaged: set[str] = set()
        self._measured: set[str] = set()  # sets verified in this process; only these have all figures for reports

    def __call__(self, param) -> None:
        """Verifies on all sets every ``frequent`` updates."""
        if param.num_update % self.frequent == 0:
            self.verify_all(param.num_update)

    def catch_up(self, num_update: int) -> None:
        """Verifies the sets that the training, when it was stopped at this update, had not verified yet."""
        if num_update and num_update % self.frequent == 0:
            for name in self.evaluations:
                if not self._is_verified(name, num_update):
                    self._verify(name, num_update)

    def prepare(self) -> None:
        """Reads every set, so that a damaged one is reported before the training starts.

        A set that one host does not have is left out on all ranks, because they embed it together.

        Collectives: all-gather ``status.evaluations``, ``validation_sets``; those of Evaluation.prepare for each set.

        Raises:
            JobError: On every rank, if a set is damaged, or cannot be verified.
        """
        self.collectives.run_on_all_ranks("evaluations", self._check_figures)
        paths = [path for evaluation in self.evaluations.values() for path in evaluation.paths]
        sets = list(self.evaluations), [path for path in paths if not os.path.isfile(path)]
        names, absent = zip(*self.collectives.gather_object("validation_sets", sets))
        for rank, other in enumerate(names):
            if other != names[0]:
                raise JobError(f"the ranks evaluate on different sets: rank 0 on {names[0]}, rank {rank} on {other}")
        self.missing = sorted(set().union(*absent))
        complete = {name: each for name, each in self.evaluations.items() if not set(each.paths) & set(self.missing)}
        for name, evaluation in complete.items():
            evaluation.prepare(name, self.collectives)
        if self.engine.averages_weights:
            averaged = {f"{name}{AVERAGED}": copy.copy(evaluation) for name, evaluation in complete.items()}
            self._averaged, complete = set(averaged), {**complete, **averaged}
        self.evaluations, self.history = complete, {name: self.history.get(name, []) for name in complete}

    def verify_all(self, num_update: int) -> dict[str, float]:
        """Verifies every set that is not yet verified at this update.

        Returns:
            Name -> first figure.

        Raises:
            JobError: On every rank, if an item is damaged, or an embedding is not finite.
            StopRequested: On every rank, if one was asked to stop.
        """
        for name in self.evaluations:
            if name not in self._measured or not self._is_verified(name, num_update):
                self._verify(name, num_update)
        return {name: each.value(self.history[name][-1]) for name, each in self.evaluations.items()}

    def measure_baselines(self) -> None:
        """Measures figures without training on the first set, for comparison.

        Collectives: those of verify_all, all-gather ``status.baselines``.
        """
        if not self.evaluations:
            return
        name, evaluation = next(iter(self.evaluations.items()))
        untrained = self.verify_all(0)[name]
        baselines = self.collectives.on_rank_zero("baselines", evaluation.baselines, self.collectives.report_progress)
        if baselines is None:  # not on rank 0
            return
        self.baselines = {**baselines, UNTRAINED: untrained}
        logging.info("[%s] without training: %s", name, describe_baselines(self.baselines))

    def problems(self, name: str) -> list[str]:
        """Returns the problems that a set's last verification shows; none for an untrained network."""
        point = self.history[name][-1]
        baselines = self.baselines if name == next(iter(self.evaluations)) else {}
        return self.evaluations[name].problems(point, baselines) if point.num_update else []

    def best(self, name: str) -> float:
        """Returns the best first figure so far; the untrained network counts only if there is no other figure."""
        evaluation = self.evaluations[name]
        return evaluation.value(evaluation.best(self.history[name]))

    def results(self) -> dict[str, SetResult]:
        """Returns the results so far by set; each was verified in this process."""
        return {
            name: SetResult(evaluation, self.history[name], self.problems(name))
            for name, evaluation in self.evaluations.items()
        }

    def metadata(self, num_update: int, averaged: bool) -> dict[str, str]:
        """Returns an ONNX file's metadata about the first set, if the saved weights were just verified.

        Args:
            num_update: update after which the weights are saved.
            averaged: whether the file has the moving average of the weights.
        """
        for name, points in self.history.items():
            if averaged == (name in self._averaged) and points and points[-1].num_update == num_update > 0:
                return {"verification_set": name, **self.evaluations[name].metadata(points[-1])}
        return {}

    def fields(self) -> dict[str, list[str]]:
        """Returns the field names of each set's points."""
        return {name: list(evaluation.point_type._fields) for name, evaluation in self.evaluations.items()}

    def restore(
        self,
        history: Mapping[str, list],
        baselines: Mapping[str, float],
        fields: Mapping[str, list[str]] | None = None,
    ) -> None:
        """Restores the state in a checkpoint, without sets that are no longer verified, or had other figures.

        Args:
            history, baselines: see the attributes.
            fields: as returned by `fields`; checkpoints of earlier versions have none.
        """
        for name, field_names in self.fields().items():
            point_type, saved = self.evaluations[name].point_type, (fields or {}).get(name, field_names)
            # All saved fields must exist today, and all fields without a default must be saved.
            if set(field_names) - point_type._field_defaults.keys() <= set(saved) <= set(field_names):
                # A checkpoint may contain points of an even earlier version, with another number of fields.
                values = [value for value in history.get(name, []) if len(value) == len(saved)]
                self.history[name] = [point_type(**dict(zip(saved, value))) for value in values]
        self.baselines = dict(baselines)

    def _check_figures(self) -> None:
        for name, evaluation in self.evaluations.items():
            figures = getattr(evaluation, "figures", None)
            try:
                if not isinstance(figures, (list, tuple)) or not figures:
                    raise TypeError("it must be a list or tuple of names")
                namedtuple("Point", ["num_update", *figures, "seconds", "best"])  # checks the names
            except (TypeError, ValueError) as error:
                raise ValueError(f"the evaluation {name!r} has figures {figures!r}: {error}") from error
            if self.engine.averages_weights and f"{name}{AVERAGED}" in self.evaluations:
                raise ValueError(
                    f"{name}{AVERAGED} is the name of a set, and of the results of {name} with the averaged weights: "
                    "rename the set, or set ema_decay=0"
                )

    def _is_verified(self, name: str, num_update: int) -> bool:
        points = self.history[name]
        return bool(points) and points[-1].num_update == num_update

    def _verify(self, name: str, num_update: int) -> None:
        start, evaluation = time.perf_counter(), self.evaluations[name]
        self.engine.average_statistics()  # so that the ranks embed alike
        embedder = Embedder(self.engine, self.batch_size, name, name in self._averaged)
        figures = self._agreed(name, num_update, evaluation.measure(embedder))
        seconds = time.perf_counter() - start
        point = evaluation.point_type(num_update=num_update, **figures, seconds=seconds)
        if self._is_verified(name, num_update):  # after resuming at this update
            self.history[name].pop()
        self.history[name].append(point)
        self._measured.add(name)
        if self.collectives.rank == 0:
            self._report(name, point)

    def _agreed(self, name: str, num_update: int, measured: Any) -> dict[str, float]:
        """Returns the figures of rank 0, on every rank.

        Collectives: all-gathers ``status.figures.<name>`` and ``figures``.
        """

        def check() -> dict[str, float]:
            expected = self.evaluations[name].figures
            try:
                fits = measured.keys() == set(expected)
                figures = {figure: float(measured[figure]) for figure in expected if fits}
            except (AttributeError, TypeError):
                fits = False
            if not fits:
                raise ValueError(f"{name} has measured {measured!r}, expected a number for each of {list(expected)}")
            for figure, value in figures.items():
                if not math.isfinite(value):
                    raise ValueError(f"{figure} of {name} is {value} after update {num_update}: it must be finite")
            return figures

        figures = self.collectives.run_on_all_ranks(f"figures.{name}", check)
        first, *others = self.collectives.gather_object("figures", figures)
        for rank, other in enumerate(others, 1):  # different processors may round differently
            far = [figure for figure, value in first.items() if not math.isclose(value, other[figure], rel_tol=1e-3)]
            if far and self.collectives.rank == 0:
                both = ", ".join(f"{figure} {first[figure]:.5f} and {other[figure]:.5f}" for figure in far)
                logging.warning("[%s] ranks 0 and %d have measured %s: those of rank 0 are taken", name, rank, both)
        return first

    def _report(self, name: str, point: Any) -> None:
        best = self.best(name)
        for line in self.evaluations[name].log_lines(point, best):
            logging.info("[%s][%d]%s", name, point.num_update, line)
        problems = self.problems(name)
        condition = "if the next verification shows the same, " if point.num_update < self.max_update else ""
        for line in [*problems, f"{condition}{self.suggestion}"] if problems else ():
            logging.warning("[%s][%d] %s", name, point.num_update, line)
        if self.trackers is not None:
            figures = {**point._asdict(), "best": best}
            constant = ("num_update", "far") if "tar_at_far" in figures else ("num_update",)
            shown = (metric for metric in figures if metric not in constant)
            self.trackers.log({f"verification/{name}/{metric}": figures[metric] for metric in shown}, point.num_update)


def baseline_name(key: str) -> str:
    """Returns a baseline's name as text."""
    return "untrained network" if key == UNTRAINED else key.replace("_", " ")


def describe_baselines(baselines: Mapping[str, float]) -> str:
    """Returns the baselines as text."""
    return ", ".join(f"{baseline_name(name)} {value:.5f}" for name, value in baselines.items())
