"""Division by 10 after given updates."""

from collections.abc import Sequence

from .schedule import Length, Moment, increasing


class Steps:
    """0.1^n, where n is the number of ``steps`` before the update (mxnet.lr_scheduler.MultiFactorScheduler)."""

    def __init__(self, length: Length, steps: Sequence[int]):
        self.steps = increasing("steps", steps)

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return 0.1 ** sum(step < moment.update for step in self.steps)
