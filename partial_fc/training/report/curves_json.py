"""``curves.json``: the curves of a training, for comparisons; rewritten at every verification.

{"summary": {...}, "losses": [[update, value], ...], "speeds": ..., "waiting": ..., "learning_rates": ...,
"head_losses": {NAME: [[update, value], ...]}, "sets": {NAME: [{"num_update": ..., "accuracy": ..., ...}, ...]}}; see
TrainingResult for the values.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.training.results import SERIES, TrainingResult, some_points
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.json_object import read_object
from partial_fc.utils.text import quoted

from .formatting import number, setting

PAIR_FIGURES = {"accuracy", "far", "tar_at_far"}  # that every point of PairVerification has
CURVES, SETTINGS = "curves.json", "settings.json"
# The files may come from strangers. These limits bound the size of the tables and the work of matplotlib.
LARGEST_FILE = 64 << 20  # bytes
MOST_LINES = 200_000  # of the log, 25 MB
MOST_NAMES, MOST_SETS, LONGEST_CELL = 1000, 100, 1000  # settings; validation sets; characters of a cell
LARGEST_NUMBER, LARGEST_FIGURE = 1e15, 1e100  # of updates and seconds; of losses and other figures


class Run(NamedTuple):
    """A training on disk, finished or not."""

    name: str  # the path of its folder, without the part that all runs share
    settings: dict[str, str]  # all settings by name, as text
    # content of curves.json, with versions as text and series as (N, 2) float64: update, value; NaN if not measured
    curves: dict[str, Any]


def write_curves(result: TrainingResult) -> None:
    """Writes the file atomically.

    Raises:
        OSError: It cannot be written.
    """
    result = result._replace(losses=some_points(result.losses, MOST_LINES))
    sets = {name: [point._asdict() for point in set_result.points] for name, set_result in result.sets.items()}
    content = {"summary": result.summary(), **result.series, "head_losses": result.head_losses, "sets": sets}
    replace_file(os.path.join(result.folder, CURVES), [(json.dumps(content) + "\n").encode()])


def read_runs(folders: Sequence[str]) -> list[Run]:
    """Reads the curves and settings from the output folders of trainings.

    Raises:
        OSError: A file is missing, as before the first verification.
        ValueError: A file is damaged.
    """
    paths = [os.path.abspath(folder) for folder in folders]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    curves = [_read(path, CURVES, _curves) for path in paths]
    settings = [_read(path, SETTINGS, _texts) for path in paths]
    return [Run(os.path.relpath(path, common), *contents) for path, *contents in zip(paths, settings, curves)]


def _read(folder: str, name: str, check: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    path = os.path.join(folder, name)
    if os.path.isdir(folder) and not os.path.exists(path):
        raise FileNotFoundError(f"{folder} has no {name}: give an output folder; the first verification writes it")
    try:
        return check(read_object(path, LARGEST_FILE))
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or was written by another version: {error!r}") from None


def _curves(curves: dict[str, Any]) -> dict[str, Any]:
    summary, sets = curves["summary"], curves["sets"]
    summary["versions"] = _texts(summary["versions"])
    for key in ("updates", "ranks", "seconds"):
        _check_number(key, summary[key], 0, LARGEST_NUMBER)
    for key in ("final_loss", "samples_per_second"):
        number(summary[key])  # raises unless it can be shown; NaN and infinity can, as after a diverged training
    summary["problems"] = {  # runs of earlier versions have none
        name: [setting(problem)[:LONGEST_CELL] for problem in problems]
        for name, problems in (summary.get("problems") or {}).items()
    }
    if len(sets) > MOST_SETS or any(len(name) > LONGEST_CELL for name in [*sets, *summary["problems"]]):
        raise ValueError(
            f"it has more than {MOST_SETS} validation sets, or names of more than {LONGEST_CELL} characters"
        )
    for points in sets.values():
        for point in points:
            _check_number("num_update", point["num_update"], 0, LARGEST_NUMBER)
            figures = figures_of(point)
            if not 1 <= len(figures) <= MOST_NAMES:
                raise ValueError(f"a point has {len(figures)} figures")
            for key, value in figures.items():
                if key in PAIR_FIGURES and is_of_pairs(point):
                    _check_number(key, value, 0, 1)
                elif value is not None and value == value:  # NaN is a figure; None is not measured
                    _check_number(key, value, -LARGEST_FIGURE, LARGEST_FIGURE)
    return {**curves, **{key: _series(key, curves[key]) for key in SERIES}}


def is_of_pairs(point: Mapping[str, Any]) -> bool:
    """Returns whether a point is from PairVerification."""
    return point.keys() >= PAIR_FIGURES


def figures_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a point, the first figure first."""
    return {name: value for name, value in point.items() if name not in ("num_update", "seconds")}


def _series(key: str, points: Any) -> np.ndarray:
    series = np.array(points, np.float64).reshape(-1, 2)  # None (not measured) becomes NaN
    updates, values = series.T
    if (
        not ((updates >= 0) & (updates <= LARGEST_NUMBER)).all()
        or (np.abs(values[np.isfinite(values)]) > LARGEST_FIGURE).any()
    ):
        raise ValueError(f"{key} has points that no training writes")
    return series


def _texts(values: dict[str, Any]) -> dict[str, str]:
    if len(values) > MOST_NAMES:
        raise ValueError(f"it has {len(values)} names, expected at most {MOST_NAMES}")
    return {name[:LONGEST_CELL]: setting(value)[:LONGEST_CELL] for name, value in values.items()}


def _check_number(key: str, value: Any, lowest: float, highest: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise ValueError(f"{key} is {quoted(value)}, expected a number from {lowest:g} to {highest:g}")
