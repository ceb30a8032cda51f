"""``curves.json``: the curves of a training, from which trainings are compared; rewritten at every verification.

{"summary": {...}, "losses": [[update, value], ...], "speeds": ..., "waiting": ..., "learning_rates": ...,
"sets": {NAME: [{"num_update": ..., "accuracy": ..., ...}, ...]}}; the values are those of TrainingResult.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.training.results import SERIES, TrainingResult
from partial_fc.utils.atomic_io import replace_file

CURVES, SETTINGS = "curves.json", "settings.json"
FIGURES = {"updates", "ranks", "final_loss", "samples_per_second", "seconds", "versions"}  # of the summary


class Run(NamedTuple):
    """A training as it is on the disk, finished or not.

    Attributes:
        name: Its folder, as short as distinguishes it from the others.
        settings: All settings by name.
        summary: Content of summary.json, at the last verification.
        series: Name of SERIES -> (N, 2) float64: update, value; NaN if not measured.
        sets: Name of a validation set -> points of its verifications, as dictionaries.
    """

    name: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    series: dict[str, np.ndarray]
    sets: dict[str, list[dict[str, Any]]]


def write_curves(result: TrainingResult) -> None:
    """Writes the file atomically.

    Raises:
        OSError: It cannot be written.
    """
    sets = {name: [point._asdict() for point in found.points] for name, found in result.sets.items()}
    content = {"summary": result.summary(), **result.series, "sets": sets}
    replace_file(os.path.join(result.folder, CURVES), [(json.dumps(content) + "\n").encode()])


def read_runs(folders: Sequence[str]) -> list[Run]:
    """Reads the curves and settings in the output folders of trainings.

    Raises:
        OSError: A file is missing, as before the first verification.
        ValueError: A file is damaged.
    """
    paths = [os.path.abspath(folder) for folder in folders]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [_read_run(path, os.path.relpath(path, common)) for path in paths]


def _read_run(folder: str, name: str) -> Run:
    curves, settings = _read_json(folder, CURVES), _read_json(folder, SETTINGS)
    try:
        # None, for what is not measured, becomes NaN.
        series = {key: np.array(curves[key], np.float64).reshape(-1, 2) for key in SERIES}
        if missing := FIGURES - curves["summary"].keys():
            raise KeyError(*missing)
        return Run(name, settings, curves["summary"], series, curves["sets"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{os.path.join(folder, CURVES)} is not of this version or damaged: {error!r}") from None


def _read_json(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    if os.path.isdir(folder) and not os.path.exists(path):
        raise FileNotFoundError(f"{folder} has no {name}: give an output folder; the first verification writes it")
    with open(path, encoding="utf-8") as file:
        try:
            content: dict[str, Any] = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    return content
