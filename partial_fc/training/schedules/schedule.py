"""What a schedule is: the factor of the initial learning rates in each update."""

from typing import NamedTuple, Protocol

from partial_fc.utils.options import LARGEST_RATE as LARGEST_FACTOR

__all__ = ["LARGEST_FACTOR", "Length", "Moment", "Schedule"]


class Moment(NamedTuple):
    """The moment of an update in a training."""

    update: int  # number of the update, from 1
    epoch: int  # epoch that its images belong to, from 0
    # Number of the update if all updates had today's batch size. After a resume with another batch size, it differs
    # from `update`: always if epochs set the length, else until a warm-up of epochs ends.
    place: int


class Length(NamedTuple):
    """Length of a training, in updates of its batch size."""

    updates: int  # of the whole training
    of_epoch: int  # of an epoch
    warm_up: int  # of the warm-up, before the schedule acts

    def share_done(self, moment: Moment) -> float:
        """Returns the fraction of updates after the warm-up that are done, with this one, from 0 to 1."""
        done = (moment.place - self.warm_up) / max(self.updates - self.warm_up, 1)
        return min(max(done, 0.0), 1.0)


class Schedule(Protocol):
    """What a schedule's class or function returns when it is called with (Length, **options)."""

    def __call__(self, moment: Moment, /) -> float:
        """Returns the factor of the initial learning rates in this update; depends on nothing else."""
