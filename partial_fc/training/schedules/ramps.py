"""Options that change during a training: a list has one value per epoch, or is a ramp.

A ramp is a list of (epoch, value) pairs, whose epochs count from 1 and increase. Each is the value in the first update
of its epoch. Between two pairs the value changes with every update; before the first and after the last it is constant.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partial_fc.utils.config import SettingsError
from partial_fc.utils.options import number
from partial_fc.utils.text import quoted

# Fraction of the updates between two pairs -> fraction of the change.
RAMPS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "exponential": lambda share: 1 - (1e-3 / (1 + 1e-6)) ** share,  # the constants of WeSpeaker's MarginScheduler
}


def is_ramp(values: Sequence[Any]) -> bool:
    """Returns whether a list is a ramp, instead of one value per epoch."""
    return len(values) > 0 and isinstance(values[0], (list, tuple))


def check_by_epoch(name: str, values: Sequence[Any]) -> dict[int, float]:
    """Returns the epochs of a list, from 1, and their values; raises SettingsError if it has another form."""
    try:
        points = [(epoch, value) for epoch, value in (values if is_ramp(values) else enumerate(values, start=1))]
        checked = {int(number("the epoch", epoch, at_least=1)): number(name, value) for epoch, value in points}
        if [epoch for epoch, _ in points] == sorted(checked) != []:
            return checked
    except (SettingsError, TypeError, ValueError):
        pass
    raise SettingsError(
        f"{name} is {quoted(values)}, but must be a number, one number per epoch, such as [0.0,0.3], or a ramp of "
        "[epoch,value] pairs with increasing epochs from 1, such as [[1,0.0],[5,0.3]]"
    )


def value_on_ramp(points: Sequence[tuple[int, float]], growth: str, done: int, of_epoch: int) -> float:
    """Returns the value of a ramp after ``done`` updates.

    Args:
        points: the (epoch, value) pairs.
        growth: key of RAMPS.
        done: number of updates done.
        of_epoch: number of updates in an epoch.
    """
    reached = bisect_right(points, 1 + done // of_epoch, key=lambda point: point[0])
    if reached in (0, len(points)):
        return points[max(reached - 1, 0)][1]
    (start, before), (end, after) = points[reached - 1 : reached + 1]
    return before + (after - before) * RAMPS[growth]((done - (start - 1) * of_epoch) / ((end - start) * of_epoch))
