"""Metrics of embeddings with labels; this folder has a file for each, and docs/evaluate.md shows how to add one."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partial_fc.evaluation.items import ALONE, EmbeddedItems, Workers
from partial_fc.utils.config import SettingsError, choose
from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import make

from .metric import DRAWS, Figure, Metric, bootstrap

__all__ = ["METRICS", "Figure", "Metric", "build_metrics", "evaluate"]

# Name -> class in a module of this folder.
METRICS = {
    "recall": "recall:Recall",
    "cmc": "recall:MatchCharacteristic",
    "precision": "precision:Precision",
    "r_precision": "precision:RPrecision",
    "map": "average_precision:AveragePrecision",
    "knn": "nearest:NearestNeighbors",
    "nmi": "clusters:MutualInformation",
    "open_set": "open_set:OpenSet",
    "eer": "equal_error_rate:EqualErrorRate",
    "min_dcf": "detection_cost:DetectionCost",
    "tar": "accept_rate:AcceptRate",
}


def build_metrics(names: Sequence[str], options: Mapping[str, Any]) -> list[Metric]:
    """Builds metrics.

    Args:
        names: keys of METRICS, or the user's classes as ``package.module:name``.
        options: keyword arguments; each is passed to every metric that accepts it.

    Raises:
        ValueError: A metric is unknown or does not accept an option's value, or no metric accepts an option.
    """
    classes = {name: _find_metric(name) for name in names}
    accepted = {name: inspect.signature(metric).parameters.keys() for name, metric in classes.items()}
    for option in options:
        if not any(option in parameters for parameters in accepted.values()):
            raise SettingsError(f"{option} is an option of none of the metrics {', '.join(names)}")
    return [
        make("metrics", name, metric, **{option: options[option] for option in options if option in accepted[name]})
        for name, metric in classes.items()
    ]


def _find_metric(name: str) -> type[Metric]:
    if ":" not in name:
        choose("metric", name, METRICS)
        name = f"{__name__}.{METRICS[name]}"
    metric: type[Metric] = import_object(name, "metrics", Metric, by_function=False)
    return metric


def evaluate(
    items: EmbeddedItems, metrics: Sequence[Metric], workers: Workers = ALONE, draws: int = DRAWS
) -> dict[str, Figure]:
    """Measures metrics, with 95 % intervals by bootstrap over classes; every rank returns the same.

    Args:
        items: the items.
        metrics: the metrics, which share what they can.
        workers: the ranks.
        draws: draws of the bootstrap; 0 gives NaN as intervals.

    Returns:
        The figures by name.

    Raises:
        ValueError: The items lack what a metric needs, such as two items of a class.
    """
    results: dict[Any, Any] = {}
    figures: dict[str, Figure] = {}
    for metric in metrics:
        if metric.source not in results:
            results[metric.source] = metric.source(items, workers)
        statistic, units = metric.statistic(results[metric.source])
        values = np.array(statistic(None), float)
        low, high = bootstrap(statistic, values, units, draws)
        figures |= {name: Figure(*map(float, row)) for name, *row in zip(metric.figures, values, low, high)}
    return figures
