"""The schedules of the learning rates, of both trainers: one file each; docs/extend.md adds one."""

from collections.abc import Callable
from typing import Any

from partial_fc.utils.config import parse_options
from partial_fc.utils.imports import import_object
from partial_fc.utils.options import number
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
# Those that a setting of their own describes, and selects where ``schedule`` is empty.
SETTING_OF = {"steps": "lr_steps", "epochs": "lr_epochs", "factors": "lr_func"}
QUADRATIC = ("steps", "epochs")  # whose ``warmup_epoch`` is arcface_torch's of 2021, unless ``warmup`` says otherwise

__all__ = [
    "LARGEST_FACTOR",
    "SCHEDULES",
    "SETTING_OF",
    "Length",
    "LinearUpdates",
    "Moment",
    "Schedule",
    "Steps",
    "build_schedule",
    "schedule_name",
    "tabulate_rates",
    "value_in_epoch",
]


def schedule_name(settings: Any) -> str:
    """Returns the name of the schedule that the settings describe."""
    described = (name for name, setting in SETTING_OF.items() if settings[setting])
    return settings["schedule"] or next(described, "constant")


def build_schedule(settings: Any, updates: int, of_epoch: int) -> Schedule:
    """Builds the schedule of the settings with its warm-up.

    Raises:
        ValueError: ``schedule`` names nothing, or what does not take ``schedule_options``; also in a call, if it
            fails or returns no factor from 0 to LARGEST_FACTOR.
    """
    name, epochs, steps = schedule_name(settings), settings["warmup_epoch"], settings["warmup_steps"]
    length = Length(updates, of_epoch, epochs * of_epoch if epochs > 0 else steps)
    schedule = _build(name, settings, length)
    if epochs <= 0:
        return LinearUpdates(schedule, steps)
    quadratic = settings["warmup"] == "quadratic" or (not settings["warmup"] and name in QUADRATIC)
    return QuadraticEpochs(schedule, epochs) if quadratic else LinearEpochs(schedule, length)


def _build(name: str, settings: Any, length: Length) -> Schedule:
    made = SCHEDULES.get(name) or import_object(name, "schedule", Schedule)
    options = parse_options("schedule_options", settings["schedule_options"], made)
    described = [settings[SETTING_OF[name]]] if name in SETTING_OF else []
    schedule = make("schedule", name, made, length, *described, **options)

    def factor(moment: Moment) -> float:
        with errors_of(f"schedule is {name!r}, which fails in update {moment.update}"):
            return number("the factor", schedule(moment), at_least=0, at_most=LARGEST_FACTOR)

    return factor
