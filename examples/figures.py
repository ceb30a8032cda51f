"""Fractions with 95 % confidence intervals, by Student's t over seeds or by bootstrap (draws with replacement).

Shapes: D draws.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# 97.5 % quantiles of Student's t, by the number of values.
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


class Figure(NamedTuple):
    """A fraction, or a difference of two fractions."""

    value: float
    margin: float  # half-width of its interval; NaN if unknown


def mean_of(values: Sequence[float]) -> Figure:
    """Returns the mean over seeds. The interval is known for three to ten seeds."""
    margin = float("nan")
    if len(values) in STUDENT:
        margin = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return Figure(statistics.mean(values), margin)


def half_width(drawn: np.ndarray) -> float:
    """Returns the half-width of a figure's interval from its values (D,) in the draws."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(high - low) / 2


def mean_difference(values: Sequence[float], drawn: Sequence[np.ndarray]) -> Figure:
    """Returns the mean difference over seeds, with its interval over seeds if it is known, or else over the draws.

    Args:
        values: the difference for each seed.
        drawn: for each seed, its difference in each draw, (D,); may be empty.
    """
    mean = mean_of(values)
    if len(values) in STUDENT or not drawn:
        return mean
    return mean._replace(margin=half_width(np.mean(drawn, axis=0)))


def percent(figure: Figure, sign: str = "") -> str:
    """Returns a figure as text, in percent. With the sign "+", positive figures have a sign, too."""
    margin = "" if np.isnan(figure.margin) else f" ± {100 * figure.margin:.2f}"
    return f"{100 * figure.value:{sign}.2f}{margin}"
