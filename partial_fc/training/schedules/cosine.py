"""Half a period of the cosine."""

import math

from partial_fc.utils.options import checked

from .schedule import Length, Moment


class Cosine:
    """final + (1 - final) (1 + cos(pi (t - w) / (T - w))) / 2 (SGDR without restarts, arXiv 1608.03983, equation 5).

    Args:
        length: T updates, the first w of them warm-up.
        final: factor of the last update.
    """

    def __init__(self, length: Length, final: float = 0.0):
        (self.final,) = checked("cosine", final=final)
        self.length = length

    def __call__(self, moment: Moment) -> float:
        """See Schedule."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * self.length.share_done(moment))) / 2
