"""One line of the training log as numbers."""

from __future__ import annotations

from typing import NamedTuple


class LossPoint(NamedTuple):
    """Mean loss and speed of the updates since the previous point.

    Attributes:
        num_update: number of the last of these updates.
        loss: mean over them.
        samples_per_second: images of all ranks per second.
        waiting: share of the time that the rank that waited longest spent waiting for data; None if not measured.
        learning_rate: of the backbone in the last of these updates; None if not known.
    """

    num_update: int
    loss: float
    samples_per_second: float
    waiting: float | None
    learning_rate: float | None = None
