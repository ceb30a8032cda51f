"""What a finished training leaves: ``report.html`` and ``curves.png`` for people, ``summary.json`` for programs.

Shapes: P pairs of a validation set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.training.report import (
    HardPair,
    Results,
    SetResult,
    draw_curves,
    hardest_pairs,
    roc_curve,
    write_page,
    write_summary,
)
from partial_fc.utils.text import plural

from .callbacks import CallBackLogging
from .verifying import CallBackVerification

HARDEST = 8  # pairs of either kind that the report shows of each set

_FILES = {
    "to look at, in any browser": "report.html",
    "the backbone, for everything": "backbone.onnx",
    "the backbone, for MXNet": "model-symbol.json, model-0000.params",
    "each rank's class centers": "<rank>_centers.param, ..._mom.param",
    "to go on from: --resume auto": "checkpoints",
    "loss and accuracy": "curves.png",
    "this training in numbers": "summary.json",
    "these lines": "training.log",
}


class TrainingResult(NamedTuple):
    """A training that has ended, on rank 0.

    Attributes:
        folder: of the outputs.
        settings: of default.py.
        ranks, updates: R, and how many updates were made.
        seconds: in all, verification and saving among them.
        log, verification: its callbacks.
        baselines: what was measured without training, by name.
        skipped: bad images that all ranks have passed over.
        missing: paths of validation sets that were not there.
        versions: of what the numbers depend on.
        problems: what is wrong with the training by the last verification of each set.
    """

    folder: str
    settings: Mapping
    ranks: int
    updates: int
    seconds: float
    log: CallBackLogging
    verification: CallBackVerification
    baselines: dict[str, float]
    skipped: int
    missing: list[str]
    versions: dict[str, str]
    problems: dict[str, list[str]]


def write_results(ended: TrainingResult) -> None:
    """Writes the files.

    Raises:
        OSError, ValueError: one could not be written, or a validation set not be read again.
    """
    summary = _summary(ended)
    write_summary(os.path.join(ended.folder, "summary.json"), summary)
    title = f"{os.path.basename(ended.folder)}, {plural(ended.ranks, 'rank')}"
    losses = [(point.num_update, point.loss) for point in ended.log.points]
    accuracies = {
        name: [(point.num_update, point.accuracy) for point in points]
        for name, points in ended.verification.history.items()
    }
    draw_curves(os.path.join(ended.folder, "curves.png"), title, losses, accuracies, ended.baselines.get("raw_pixels"))
    write_page(os.path.join(ended.folder, "report.html"), _page(ended, title, summary))


def log_summary(ended: TrainingResult) -> None:
    """The last lines of the log."""
    if ended.skipped:
        logging.warning("bad images skipped, by all ranks together: %d", ended.skipped)
    verification = ended.verification
    for name, points in verification.history.items():
        logging.info("[%s] accuracy %.5f at the end, %.5f at best", name, points[-1].accuracy, verification.best(name))
        for problem in ended.problems[name]:
            logging.warning("[%s] %s", name, problem)
    if any(ended.problems.values()):
        logging.warning("%s", verification.suggestion)
    if ended.baselines:
        line = "without training: raw pixels %(raw_pixels).5f, untrained network %(untrained).5f"
        logging.info(line, ended.baselines)
    logging.info("%d updates in %.1f s, all written to %s", ended.updates, ended.seconds, ended.folder)
    for what, names in _FILES.items():
        logging.info("  %-28s %s", names, what)
    logging.info("next: bash run.sh --loss cosface, bash run.sh sample_ratio=0.1, NP=4 bash run.sh")
    logging.info("      python -m partial_fc.inference.compare a.jpg b.jpg --model %s", ended.folder)
    logging.info("      pip install tensorboard; tensorboard --logdir %s", os.path.dirname(ended.folder))


def _summary(ended: TrainingResult) -> dict:
    settings, log, verification = ended.settings, ended.log, ended.verification
    images = ended.updates * settings["batch_size"] * ended.ranks
    return {
        "dataset": settings["dataset"],
        "network": settings["network"],
        "loss": settings["loss"],
        "ranks": ended.ranks,
        "sample_ratio": settings["sample_ratio"],
        "updates": ended.updates,
        "seconds": round(ended.seconds, 3),
        "samples_per_second": round(images / log.seconds, 2) if log.seconds else None,
        "waiting_for_data": log.waiting,
        "skipped_images": ended.skipped,
        "final_loss": log.points[-1].loss if log.points else None,
        "verification": {name: points[-1].accuracy for name, points in verification.history.items()},
        "verification_details": {
            name: {**points[-1]._asdict(), "best": verification.best(name)}
            for name, points in verification.history.items()
        },
        "baselines": ended.baselines,
        "problems": {name: problems for name, problems in ended.problems.items() if problems},
        "suggestion": verification.suggestion if any(ended.problems.values()) else None,
        "versions": ended.versions,
    }


def _page(ended: TrainingResult, title: str, summary: dict) -> Results:
    points = ended.log.points
    return Results(
        title=title,
        summary=summary,
        settings=dict(ended.settings),
        losses=[(point.num_update, point.loss) for point in points],
        speeds=[(point.num_update, point.samples_per_second) for point in points],
        waiting=[(point.num_update, point.waiting) for point in points],
        sets=[_set_result(ended.verification, name) for name in ended.verification.sets],
        missing=ended.missing,
    )


def _set_result(verification: CallBackVerification, name: str) -> SetResult:
    figures, points = verification.figures[name], verification.history[name]
    images, _ = read_pairs(verification.sets[name])
    hard = [
        HardPair(pair, bool(figures.issame[pair]), float(figures.distance[pair]), *images[2 * pair : 2 * pair + 2])
        for kind in hardest_pairs(figures.distance, figures.issame, points[-1].threshold, HARDEST)
        for pair in map(int, kind)
    ]
    roc = roc_curve(figures.distance, figures.issame)
    return SetResult(name=name, points=points, roc=roc, hardest=hard, pairs=len(figures.issame))
