"""The axes of a chart: their range, and where their ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

TICKS = 4  # steps that a range is cut into, about
LONGEST = 6  # decimals of a tick, before it is written with an exponent


class Tick(NamedTuple):
    value: float
    text: str


class Scale(NamedTuple):
    """An axis from `low` to `high`, above it, with its ticks; `log` where it goes by powers of ten."""

    low: float
    high: float
    ticks: list[Tick]
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values (N,) as shares (N,) of the axis's length; on a log axis, those below its start lie at it."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (np.log10(np.maximum(values, self.low)) - low) / (high - low)
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low)


def linear(values: Iterable[float], floor: float = -math.inf, ceiling: float = math.inf) -> Scale:
    """An axis for finite values, at least one, from a tick to a tick, but not past `floor` and `ceiling`."""
    values = list(values)
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat curve, in the middle
        margin = 0.1 * abs(high) or 1.0
        low, high = low - margin, high + margin
    step = round_step((high - low) / TICKS)
    low, high = max(math.floor(low / step) * step, floor), min(math.ceil(high / step) * step, ceiling)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Scale(low, high, [Tick(number * step, tick_text(number * step, step)) for number in numbers])


def round_step(width: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `width`."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= width * (1 - 1e-9))


def tick_text(value: float, step: float) -> str:
    """A tick's number, with as many decimals as ticks this far apart need."""
    decimals = next((digits for digits in range(LONGEST) if abs(round(step, digits) - step) < 1e-9 * step), LONGEST)
    if decimals == LONGEST or abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value + 0.0:,.{decimals}f}"


def decades(low: float) -> Scale:
    """A log axis from `low`, which is above 0 and below 1, to 1."""
    first = math.ceil(math.log10(low) - 1e-9)
    ticks = [Tick(10.0**power, f"{10.0**power:g}".replace("e-0", "e-")) for power in range(first, 1)]
    return Scale(low, 1.0, ticks, log=True)
