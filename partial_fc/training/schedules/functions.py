"""Our schedules: each function takes the length of a training and options; it returns a function of Moment."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from partial_fc.utils.config import Setting, SettingsError
from partial_fc.utils.options import RATE, checked
from partial_fc.utils.user_code import errors_of

from .schedule import Length, Moment, Schedule

FACTORS = Setting("factors", [], "", item=float, **RATE)


def constant(length: Length) -> Schedule:
    """The factor is always 1."""
    return lambda moment: 1.0


def steps(length: Length, steps: Sequence[int]) -> Schedule:
    """0.1^n, where n is the number of ``steps`` before the update (mxnet.lr_scheduler.MultiFactorScheduler)."""
    numbers = _increasing("steps", steps)
    return lambda moment: 0.1 ** sum(step < moment.update for step in numbers)


def epoch_steps(length: Length, epochs: Sequence[int]) -> Schedule:
    """0.1^n, where n is the number of m in ``epochs`` with m - 1 <= epoch (arcface_torch, commit fb5b42fe).

    ``epochs`` count from 1.
    """
    numbers = _increasing("epochs", epochs)
    return lambda moment: 0.1 ** sum(m - 1 <= moment.epoch for m in numbers)


def factors(length: Length, factors: Sequence[float]) -> Schedule:
    """One factor per epoch; the last one holds for all later epochs."""
    numbers = FACTORS.check(factors)
    return lambda moment: value_in_epoch(numbers, moment.epoch)


def polynomial(length: Length, power: float = 1.0) -> Schedule:
    """(1 - (t - w) / (T - w))^power in update t of T, after w updates of warm-up, as arcface_torch today.

    t counts from 1, so that the last update has the rate 0. In arcface_torch it counts from 0: each update has the rate
    that the previous one has here, except that the first one has the whole initial rate, whatever the warm-up.
    """
    (exponent,) = checked("polynomial", power=power)
    return lambda moment: (1 - length.share_done(moment)) ** exponent


def cosine(length: Length, final: float = 0.0) -> Schedule:
    """final + (1 - final) (1 + cos(pi (t - w) / (T - w))) / 2 (SGDR without restarts, arXiv 1608.03983, equation 5).

    t is the update of T, w the updates of warm-up, and ``final`` the factor of the last update.
    """
    (last,) = checked("cosine", final=final)
    return lambda moment: last + (1 - last) * (1 + math.cos(math.pi * length.share_done(moment))) / 2


def exponential(length: Length, final: float = 5e-4) -> Schedule:
    """final^((t - w) / (T - w)) in update t of T, after w updates of warm-up.

    ``final`` is the factor of the last update; WeSpeaker's recipes have 5e-4. There the decay also acts during the
    warm-up: after it, each rate is final^(w / T) to 1 times as high as here.
    """
    (last,) = checked("exponential", final=final)
    return lambda moment: last ** length.share_done(moment)


def linear_warm_up(schedule: Schedule, updates: int, by_epoch: bool) -> Schedule:
    """t / ``updates`` in update t, until the schedule takes over.

    ``by_epoch``: whether the warm-up was given in epochs, whose number of updates depends on the batch size: t is
    then Moment.place.
    """

    def factor(moment: Moment) -> float:
        t = moment.place if by_epoch else moment.update
        return t / updates if t < updates else schedule(moment)

    return factor


def quadratic_warm_up(schedule: Schedule, epochs: int) -> Schedule:
    """((e + 1) / (n + 1))^2 in epoch e of the first n = ``epochs`` (arcface_torch, commit fb5b42fe)."""
    return lambda m: ((m.epoch + 1) / (epochs + 1)) ** 2 if m.epoch < epochs else schedule(m)


def value_in_epoch(setting: float | Sequence[float], epoch: int) -> float:
    """Returns a setting's value in an epoch, from 0; the last value of a list holds for all later epochs."""
    return setting[min(epoch, len(setting) - 1)] if isinstance(setting, Sequence) else setting


def tabulate_rates(lr_func: Callable[[int], float], num_epoch: int) -> list[float]:
    """Returns a user's factors for all epochs as numbers, which settings.json can hold and ranks can compare.

    ``lr_func`` maps an epoch, from 0, to a factor of the initial learning rate. Raises SettingsError if it fails or
    returns no number, or the number of epochs is not known.
    """
    if not num_epoch:
        raise SettingsError("lr_func is a function of the epoch, but num_epoch is 0: set num_epoch, or remove lr_func")
    with errors_of("lr_func failed"):
        return [float(lr_func(epoch)) for epoch in range(num_epoch)]


def _increasing(name: str, numbers: Any) -> list[int]:
    """Returns numbers of updates or epochs, from 1; raises SettingsError if they do not increase."""
    checked_numbers: list[int] = Setting(name, [], "", item=int, at_least=1).check(numbers)
    if checked_numbers != sorted(set(checked_numbers)):
        raise SettingsError(f"{name} is {checked_numbers}, but must be increasing numbers")
    return checked_numbers
