"""Half a period of the cosine."""

import math

from .schedule import Length, Moment


class Cosine:
    """final + (1 - final) (1 + cos(pi (t - w) / (T - w))) / 2 (SGDR without restarts, arXiv 1608.03983, equation 5).

    Args:
        length: T updates, the first w of them warm-up.
        final: factor of the last update.
    """

    def __init__(self, length: Length, final: float = 0.0):
        if not 0 <= final <= 1:
            raise ValueError(f"final is {final}, but must be from 0 to 1")
        self.length, self.final = length, final

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * self.length.share_done(moment))) / 2
