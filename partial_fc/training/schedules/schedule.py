"""What a schedule is: the factor of the initial learning rates in each update."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from partial_fc.utils.config import Setting, SettingsError
from partial_fc.utils.options import LARGEST_RATE as LARGEST_FACTOR

__all__ = ["LARGEST_FACTOR", "Length", "Moment", "Schedule", "increasing"]


def increasing(name: str, numbers: Any) -> Sequence[int]:
    """Returns numbers of updates or epochs from 1; raises SettingsError if they do not increase."""
    checked: list[int] = Setting(name, [], "", item=int, at_least=1).check(numbers)
    if checked != sorted(set(checked)):
        raise SettingsError(f"{name} is {checked}, but must be increasing numbers")
    return checked


class Moment(NamedTuple):
    """When an update takes place."""

    update: int  # its number, from 1
    epoch: int  # the epoch whose images it reads, from 0
    # its number among the updates of the whole training. It is not `update` where a training of some epochs has gone on
    # with another batch size: the images read so far are then counted in updates of the new size. In a training of some
    # updates they are until a warm-up of epochs ends.
    place: int


class Length(NamedTuple):
    """Length of a training, in updates of its batch size."""

    updates: int  # of the whole training
    of_epoch: int  # of an epoch
    warm_up: int  # of those in which the rates grow, before the schedule acts

    def share_done(self, moment: Moment) -> float:
        """Returns the share of the updates after the warm-up that are done with this one, from 0 to 1."""
        done = (moment.place - self.warm_up) / max(self.updates - self.warm_up, 1)
        return min(max(done, 0.0), 1.0)


class Schedule(Protocol):
    """What a schedule's class or function returns when it is called with (Length, **options)."""

    def __call__(self, moment: Moment) -> float:
        """Returns the factor of the initial learning rates in this update; depends on nothing else."""
