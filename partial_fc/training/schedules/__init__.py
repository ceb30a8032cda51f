"""The schedules of the learning rates, of both trainers: one file each; docs/extend.md adds one."""

from collections.abc import Callable
from typing import Any

from partial_fc.utils.imports import import_object
from partial_fc.utils.options import number, options_of, other_options
from partial_fc.utils.user_code import errors_of, make

from .constant import Constant
from .cosine import Cosine
from .epochs import EpochSteps
from .factors import Factors, tabulate_rates, value_in_epoch
from .polynomial import Polynomial
from .schedule import LARGEST_FACTOR, Length, Moment, Schedule
from .steps import Steps
from .warm_up import LinearEpochs, LinearUpdates, QuadraticEpochs

# Name in the setting ``schedule`` -> what makes it, with the options of ``schedule_options``.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "steps": Steps,
    "epochs": EpochSteps,
    "factors": Factors,
    "polynomial": Polynomial,
    "cosine": Cosine,
    "constant": Constant,
}
QUADRATIC = ("steps", "epochs")  # whose ``warmup_epoch`` is arcface_torch's of 2021, unless option warmup differs

__all__ = [
    "LARGEST_FACTOR",
    "SCHEDULES",
    "Length",
    "LinearUpdates",
    "Moment",
    "Schedule",
    "Steps",
    "build_schedule",
    "tabulate_rates",
    "value_in_epoch",
]


def build_schedule(settings: Any, updates: int, of_epoch: int) -> Schedule:
    """Builds the schedule of the settings with its warm-up.

    Raises:
        ValueError: ``schedule`` names nothing, or what does not take ``schedule_options``; also in a call, if it
            fails or returns no factor from 0 to LARGEST_FACTOR.
    """
    name, epochs, steps = settings["schedule"], settings["warmup_epoch"], settings["warmup_steps"]
    length = Length(updates, of_epoch, epochs * of_epoch if epochs > 0 else steps)
    schedule = _build(name, settings, length)
    if epochs <= 0:
        return LinearUpdates(schedule, steps)
    growth = options_of(settings, "schedule_options").warmup or ("quadratic" if name in QUADRATIC else "linear")
    return QuadraticEpochs(schedule, epochs) if growth == "quadratic" else LinearEpochs(schedule, length)


def _build(name: str, settings: Any, length: Length) -> Schedule:
    made = SCHEDULES.get(name) or import_object(name, "schedule", Schedule)
    schedule = make("schedule", name, made, length, **other_options(settings, "schedule_options", made))

    def factor(moment: Moment) -> float:
        with errors_of(f"schedule is {name!r}, which fails in update {moment.update}"):
            return number("the factor", schedule(moment), at_least=0, at_most=LARGEST_FACTOR)

    return factor
