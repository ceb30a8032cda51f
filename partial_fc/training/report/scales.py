"""Axes of a chart: range and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

INTERVALS = 4  # approximate number of intervals between ticks
MAX_DECIMALS = 6  # of a tick; beyond them it is written with an exponent


class Tick(NamedTuple):
    """A tick and its label."""

    value: float
    text: str


class Scale(NamedTuple):
    """An axis from ``low`` to ``high`` > ``low`` with its ticks; ``log``: whether it is logarithmic."""

    low: float
    high: float
    ticks: list[Tick]
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Returns values (N,) as shares (N,) of the axis length; a log axis clips values below its start."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (np.log10(np.maximum(values, self.low)) - low) / (high - low)
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low)


def linear(values: Iterable[float], floor: float = -math.inf, ceiling: float = math.inf) -> Scale:
    """Returns an axis for at least one finite value that begins and ends at ticks, or at ``floor`` and ``ceiling``."""
    values = list(values)
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # centers a flat curve
        margin = 0.1 * abs(high) or 1.0
        low, high = low - margin, high + margin
    step = round_step((high - low) / INTERVALS)
    low, high = max(math.floor(low / step) * step, floor), min(math.ceil(high / step) * step, ceiling)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Scale(low, high, [Tick(number * step, tick_text(number * step, step)) for number in numbers])


def round_step(width: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least ``width``."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= width * (1 - 1e-9))


def tick_text(value: float, step: float) -> str:
    """Formats the value of a tick with as many decimals as the distance of the ticks requires."""
    decimals = next(
        (digits for digits in range(MAX_DECIMALS) if abs(round(step, digits) - step) < 1e-9 * step), MAX_DECIMALS
    )
    if decimals == MAX_DECIMALS or abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value + 0.0:,.{decimals}f}"


def decades(low: float) -> Scale:
    """Returns a log axis from ``low`` to 1; ``low`` is between 0 and 1."""
    first = math.ceil(math.log10(low) - 1e-9)
    ticks = [Tick(10.0**power, f"{10.0**power:g}".replace("e-0", "e-")) for power in range(first, 1)]
    return Scale(low, 1.0, ticks, log=True)
