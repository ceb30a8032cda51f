"""Polynomial decay to 0."""

from partial_fc.utils.options import checked

from .schedule import Length, Moment


class Polynomial:
    """(1 - (t - w) / (T - w))^power in update t of T, after w updates of warm-up, as today's arcface_torch.

    t counts from 1, so that the last update has the rate 0. There it counts from 0: each update has the rate that the
    one before has here, except that the first one has the whole initial rate, whatever the warm-up.
    """

    def __init__(self, length: Length, power: float = 1.0):
        (self.power,) = checked("polynomial", power=power)
        self.length = length

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return (1 - self.length.share_done(moment)) ** self.power
