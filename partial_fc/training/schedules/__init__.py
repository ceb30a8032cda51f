"""Learning rate schedules of both trainers; docs/extend.md shows how to add one."""

from collections.abc import Callable
from typing import Any

from partial_fc.utils.imports import import_object
from partial_fc.utils.options import number, options_of, other_options
from partial_fc.utils.user_code import errors_of, make

from .functions import (
    constant,
    cosine,
    epoch_steps,
    exponential,
    factors,
    linear_warm_up,
    polynomial,
    quadratic_warm_up,
    steps,
    tabulate_rates,
    value_in_epoch,
)
from .ramps import check_by_epoch, is_ramp, value_on_ramp
from .schedule import LARGEST_FACTOR, Length, Moment, Schedule

__all__ = [
    "SCHEDULES",
    "Length",
    "Moment",
    "Schedule",
    "build_schedule",
    "check_by_epoch",
    "is_ramp",
    "tabulate_rates",
    "value_in_epoch",
    "value_on_ramp",
]

# Name in the setting ``schedule`` -> function that makes the schedule from its Length and ``schedule_options``.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "steps": steps,
    "epochs": epoch_steps,
    "factors": factors,
    "polynomial": polynomial,
    "cosine": cosine,
    "exponential": exponential,
    "constant": constant,
}
QUADRATIC = ("steps", "epochs")  # schedules with a quadratic warm-up by default, as in arcface_torch of 2021


def build_schedule(settings: Any, updates: int, of_epoch: int) -> Schedule:
    """Builds the schedule of the settings with its warm-up.

    Args:
        settings: settings of the training.
        updates, of_epoch: length of the training and of an epoch in updates.

    Raises:
        ValueError: ``schedule`` is unknown, or does not take ``schedule_options``. The schedule also raises it if
            the user's function fails, or returns no factor from 0 to LARGEST_FACTOR.
    """
    name, epochs, steps = settings["schedule"], settings["warmup_epoch"], settings["warmup_steps"]
    length = Length(updates, of_epoch, epochs * of_epoch if epochs > 0 else steps)
    maker = SCHEDULES.get(name) or import_object(name, "schedule", Schedule)
    unchecked = make("schedule", name, maker, length, **other_options(settings, "schedule_options", maker))

    def schedule(moment: Moment) -> float:
        with errors_of(f"schedule is {name!r}, which fails in update {moment.update}"):
            return number("the factor", unchecked(moment), at_least=0, at_most=LARGEST_FACTOR)

    if epochs <= 0:
        return linear_warm_up(schedule, steps, by_epoch=False)
    growth = options_of(settings, "schedule_options").warmup or ("quadratic" if name in QUADRATIC else "linear")
    if growth == "quadratic":
        return quadratic_warm_up(schedule, epochs)
    return linear_warm_up(schedule, length.warm_up, by_epoch=True)
