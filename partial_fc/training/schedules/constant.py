"""The initial rates all along."""

from .schedule import Length, Moment


class Constant:
    """1."""

    def __init__(self, length: Length):
        pass

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return 1.0
