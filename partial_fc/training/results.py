"""The results of a training so far: ``report.html`` and ``curves.png`` for people, JSON files for programs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.utils.text import plural

from .loss_point import LossPoint
from .report import (
    CURVES,
    HardPair,
    Results,
    SetResult,
    draw_curves,
    hardest_pairs,
    roc_curve,
    write_curves,
    write_page,
    write_summary,
)
from .verification_history import PairFigures, best_accuracy

HARDEST = 8  # pairs of each kind that the report shows per set


class TrainingResult(NamedTuple):
    """A training, finished or not, on rank 0.

    Attributes:
        folder: output folder.
        settings: of default.py.
        ranks, updates: R and the number of updates.
        seconds: total time, including verification and saving.
        training_seconds: time without verification and saving.
        losses: one LossPoint per log line.
        waiting: share of training_seconds spent waiting for data; None if not measured.
        validation_sets: name -> path of the ``.bin``.
        history: name -> points of all verifications.
        figures: name -> PairFigures of the last verification.
        problems: name -> problems that the last verification shows, one sentence each.
        suggestion: settings to change if there are problems.
        baselines: accuracies without training, by name.
        skipped: number of bad images that all ranks skipped.
        missing: paths of validation sets that do not exist.
        versions: of the software on which the numbers depend.
    """

    folder: str
    settings: Mapping[str, Any]
    ranks: int
    updates: int
    seconds: float
    training_seconds: float
    losses: Sequence[LossPoint]
    waiting: float | None
    validation_sets: Mapping[str, str]
    history: Mapping[str, Sequence[VerificationPoint]]
    figures: Mapping[str, PairFigures]
    problems: Mapping[str, Sequence[str]]
    suggestion: str
    baselines: Mapping[str, float]
    skipped: int
    missing: Sequence[str]
    versions: Mapping[str, str]


def write_results(result: TrainingResult) -> None:
    """Writes ``summary.json``, ``curves.png``, ``report.html`` and ``curves.json`` to the output folder.

    Raises:
        OSError, ValueError: A file cannot be written, or a validation set cannot be read again.
    """
    write_summary(os.path.join(result.folder, "summary.json"), summarize(result))
    draw_curves(os.path.join(result.folder, "curves.png"), _results(result))
    write_report(result)


def write_report(result: TrainingResult) -> None:
    """Writes ``report.html`` and ``curves.json``, also of a training that has not finished.

    Raises:
        OSError, ValueError: As `write_results`.
    """
    results = _results(result)
    write_page(os.path.join(result.folder, "report.html"), results)
    write_curves(os.path.join(result.folder, CURVES), results)


def try_report(result: TrainingResult) -> None:
    """Writes the report, or a warning: the training goes on, and a file that is missing may be back at the next one."""
    try:
        write_report(result)
    except (OSError, ValueError) as error:
        logging.warning("the report of update %d was not written: %s", result.updates, error)


def summarize(result: TrainingResult) -> dict[str, Any]:
    """Returns the content of ``summary.json``."""
    settings = result.settings
    timed = result.losses[-1].num_update if result.losses else 0  # of training_seconds
    images = timed * settings["batch_size"] * result.ranks
    return {
        "dataset": settings["dataset"],
        "network": settings["network"],
        "loss": settings["loss"],
        "ranks": result.ranks,
        "sample_ratio": settings["sample_ratio"],
        "updates": result.updates,
        "seconds": round(result.seconds, 3),
        "samples_per_second": round(images / result.training_seconds, 2) if result.training_seconds else None,
        "waiting_for_data": result.waiting,
        "skipped_images": result.skipped,
        "final_loss": result.losses[-1].loss if result.losses else None,
        "verification": {name: points[-1].accuracy for name, points in result.history.items()},
        "verification_details": {
            name: {**points[-1]._asdict(), "best": best_accuracy(points)} for name, points in result.history.items()
        },
        "baselines": result.baselines,
        "problems": {name: problems for name, problems in result.problems.items() if problems},
        "suggestion": result.suggestion if any(result.problems.values()) else None,
        "versions": result.versions,
    }


def _title(result: TrainingResult) -> str:
    return f"{os.path.basename(result.folder)}, {plural(result.ranks, 'rank')}"


def _results(result: TrainingResult) -> Results:
    return Results(
        title=_title(result),
        summary=summarize(result),
        settings=dict(result.settings),
        losses=[(point.num_update, point.loss) for point in result.losses],
        speeds=[(point.num_update, point.samples_per_second) for point in result.losses],
        waiting=[(point.num_update, point.waiting) for point in result.losses],
        learning_rates=[(point.num_update, point.learning_rate) for point in result.losses],
        sets=[_set_result(result, name) for name in result.validation_sets],
        missing=result.missing,
    )


def _set_result(result: TrainingResult, name: str) -> SetResult:
    figures, points = result.figures[name], result.history[name]
    images, _ = read_pairs(result.validation_sets[name])
    hard = [
        HardPair(pair, bool(figures.issame[pair]), float(figures.distance[pair]), *images[2 * pair : 2 * pair + 2])
        for kind in hardest_pairs(figures.distance, figures.issame, points[-1].threshold, HARDEST)
        for pair in map(int, kind)
    ]
    roc = roc_curve(figures.distance, figures.issame)
    return SetResult(name=name, points=points, roc=roc, hardest=hard, pairs=len(figures.issame))
