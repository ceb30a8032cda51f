"""What the page is made of. A figure that was not measured is None or NaN, and is named so there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.verification import VerificationPoint


class HardPair(NamedTuple):
    """A pair by its `number` in the set, with its squared distance (0 to 4) and its two images, encoded as they are in
    the set: JPEG, PNG or WebP."""

    number: int
    same: bool
    distance: float
    left: bytes
    right: bytes


class SetResult(NamedTuple):
    """A validation set of `pairs` pairs: its verifications by update, the ROC of the last one as roc_curve gives it,
    and its hardest pairs, of each kind worst first."""

    name: str
    points: Sequence[VerificationPoint]
    roc: tuple[np.ndarray, np.ndarray]
    hardest: Sequence[HardPair]
    pairs: int


class Results(NamedTuple):
    """A finished training.

    `summary` is what summary.json holds, `settings` every setting by name; `losses`, `speeds` (images a second of all
    ranks) and `waiting` (share of the time, of the rank that waited most) have an entry for each log line, beginning
    with its update; `missing` are the validation sets that were not there.
    """

    title: str
    summary: dict[str, Any]
    settings: dict[str, Any]
    losses: Sequence[tuple[int, float | None]]
    speeds: Sequence[tuple[int, float | None]]
    waiting: Sequence[tuple[int, float | None]]
    sets: Sequence[SetResult]
    missing: Sequence[str]
