"""Growth of the rates before a schedule acts."""

from .schedule import Length, Moment, Schedule


class LinearUpdates:
    """t / w in update t of the first ``updates``, w."""

    def __init__(self, schedule: Schedule, updates: int):
        self.schedule, self.updates = schedule, updates

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return moment.update / self.updates if moment.update < self.updates else self.schedule(moment)


class LinearEpochs:
    """t / w in update t of the first epochs, which have w."""

    def __init__(self, schedule: Schedule, length: Length):
        self.schedule, self.updates = schedule, length.warm_up

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return moment.place / self.updates if moment.place < self.updates else self.schedule(moment)


class QuadraticEpochs:
    """((e + 1) / (n + 1))^2 in epoch e of the first ``epochs``, n (arcface_torch, commit fb5b42fe)."""

    def __init__(self, schedule: Schedule, epochs: int):
        self.schedule, self.epochs = schedule, epochs

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return ((moment.epoch + 1) / (self.epochs + 1)) ** 2 if moment.epoch < self.epochs else self.schedule(moment)
