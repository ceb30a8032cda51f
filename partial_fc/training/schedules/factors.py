"""A factor for each epoch, given by the user."""

from collections.abc import Callable, Sequence

from partial_fc.utils.config import Setting, SettingsError
from partial_fc.utils.options import RATE
from partial_fc.utils.user_code import errors_of

from .schedule import Length, Moment

FACTORS = Setting("factors", [], "", item=float, **RATE)


class Factors:
    """The number of the epoch in ``factors``; the last one holds for all later epochs."""

    def __init__(self, length: Length, factors: Sequence[float]):
        self.factors = FACTORS.check(factors)

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return value_in_epoch(self.factors, moment.epoch)


def value_in_epoch(setting: float | Sequence[float], epoch: int) -> float:
    """Returns the value of a setting in an epoch, from 0: of several the last is that of all later epochs."""
    return setting[min(epoch, len(setting) - 1)] if isinstance(setting, Sequence) else setting


def tabulate_rates(lr_func: Callable[[int], float], num_epoch: int) -> list[float]:
    """Returns a user's factors for all epochs, which settings.json can hold and ranks can compare.

    ``lr_func`` maps the number of an epoch, from 0, to a factor of the initial learning rate. Raises SettingsError if
    it fails or returns no number, or the number of epochs is not known.
    """
    if not num_epoch:
        raise SettingsError("lr_func is a function of the epoch, but num_epoch is 0: set num_epoch, or remove lr_func")
    with errors_of("lr_func failed"):
        return [float(lr_func(epoch)) for epoch in range(num_epoch)]
