"""Shares that users choose, from which the limits of a set follow; see limits.py."""

from typing import NamedTuple


class Shares(NamedTuple):
    """Quantiles of the distributions that the limits are taken from; SHARES says of what."""

    far: float = 0.02
    near: float = 0.02
    sure: float = 0.25
    split: float = 0.98
    copy: float = 0.05
    person: float = 0.5


SHARES = {
    "far": "of the images of other classes that are nearer to a class than an image that is far from it",
    "near": "of typical images that are too far from their class to be near by this measure",
    "sure": "of typical images whose class leads by too little for a new label",
    "split": "of random halves of one class that are found to be one person",
    "copy": "of altered copies of images that are not found to be near-duplicates",
    "person": "of typical images that are too far from their class to say that a test image is their person",
}
