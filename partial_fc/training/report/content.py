"""Results of a training: the input of the page, and ``summary.json``. Unmeasured figures are None or NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.utils.atomic_io import replace_file


class HardPair(NamedTuple):
    """A pair that is hard to verify.

    Attributes:
        number: Index of the pair in the set.
        same: Whether both images show the same person.
        distance: Squared distance of the embeddings, 0 to 4.
        left: First image, encoded as in the set: JPEG, PNG or WebP.
        right: Second image.
    """

    number: int
    same: bool
    distance: float
    left: bytes
    right: bytes


class SetResult(NamedTuple):
    """Results on a validation set.

    Attributes:
        name: Name of the set.
        points: Verifications by update.
        roc: ROC of the last verification, as returned by `roc_curve`.
        hardest: Hardest pairs; of each kind the worst first.
        pairs: Number of pairs.
    """

    name: str
    points: Sequence[VerificationPoint]
    roc: tuple[np.ndarray, np.ndarray]
    hardest: Sequence[HardPair]
    pairs: int


class Results(NamedTuple):
    """A training, finished or not.

    Attributes:
        title: Title of the page.
        summary: Content of summary.json.
        settings: All settings by name.
        losses: (update, loss) per log line.
        speeds: (update, images per second of all ranks) per log line.
        waiting: (update, share of the time that the rank with the longest waits waited for data) per log line.
        learning_rates: (update, learning rate of the backbone) per log line.
        sets: Results on the validation sets.
        missing: Paths of validation sets that do not exist.
    """

    title: str
    summary: dict[str, Any]
    settings: dict[str, Any]
    losses: Sequence[tuple[int, float | None]]
    speeds: Sequence[tuple[int, float | None]]
    waiting: Sequence[tuple[int, float | None]]
    learning_rates: Sequence[tuple[int, float | None]]
    sets: Sequence[SetResult]
    missing: Sequence[str]


def write_summary(path: str, summary: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically.

    Raises:
        OSError: The file cannot be written.
    """
    replace_file(path, [(json.dumps(summary, indent=2) + "\n").encode()])
