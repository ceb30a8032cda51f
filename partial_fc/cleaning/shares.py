"""Shares that users choose, from which the limits of a set follow; see limits.py."""

from typing import NamedTuple


class Shares(NamedTuple):
    """Quantiles of the distributions that the limits are taken from.

    Attributes:
        far: share of the images of other classes that are as near as an image must be not to be far from its class.
        near: share of typical images that are too far from their class to be near by this measure.
        sure: share of typical images whose class leads by too little to be sure of it.
        split: share of random halves of one class that are found to be one person.
        copy: share of altered copies that are not found to be near-duplicates.
        person: share of typical images that are too far from their class to say that it is their person.
    """

    far: float = 0.02
    near: float = 0.02
    sure: float = 0.25
    split: float = 0.98
    copy: float = 0.05
    person: float = 0.5
