"""Division by 10 before given epochs."""

from collections.abc import Sequence

from .schedule import Length, Moment, increasing


class EpochSteps:
    """0.1^n, where n is the number of m in ``epochs`` with m - 1 <= epoch (arcface_torch, commit fb5b42fe).

    An m counts epochs from 1.
    """

    def __init__(self, length: Length, epochs: Sequence[int]):
        self.epochs = increasing("epochs", epochs)

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return 0.1 ** sum(m - 1 <= moment.epoch for m in self.epochs)
