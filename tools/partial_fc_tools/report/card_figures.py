"""Measures the figures of a model card.

Shapes: P pairs of a set.
"""

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.verification import FOLDS, Verification
from partial_fc.export.model import FaceModel
from partial_fc.training.inputs import validation_sets
from partial_fc.utils.config import read_settings
from partial_fc_tools.verify.command import verify_model
from partial_fc_tools.verify.pair_rates import (
    PairRates,
    Rate,
    correct_pairs,
    pair_rates,
    rates_by_group,
    rates_by_rejection,
    shared_threshold,
)

from .pair_groups import read_groups

REJECTED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # shares of the images


class SetFigures(NamedTuple):
    """Figures of a set of pairs."""

    distance: np.ndarray  # (P,) squared distances
    issame: np.ndarray  # (P,) bool
    verification: Verification  # over ten folds
    correct: Rate  # pairs judged correctly by it
    xnorm: float  # mean norm of the embeddings
    rates: PairRates  # at the shared threshold
    rejection: Mapping[float, PairRates]  # share of images rejected -> rates of the other pairs


class Figures(NamedTuple):
    """Figures of a model card."""

    far: float  # requested false accept rate
    threshold: float | None  # squared distance with this rate on the first set; None without sets
    sets: Mapping[str, SetFigures]  # by name; the first one determines the threshold
    groups: Mapping[str, Mapping[str, PairRates]]  # column -> group -> rates on the first set


def sets_of_training(folder: str) -> tuple[list[str], list[str]]:
    """Returns the paths of a training's validation sets: those that exist, and those that do not.

    Raises:
        OSError, ValueError: The settings of the training cannot be read.
    """
    path = os.path.join(folder, "settings.json")
    settings = SimpleNamespace(**{"debug": False, **read_settings(path)})
    try:
        paths = list(validation_sets(settings).values())
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path} does not name the validation sets ({error}): name them with --pairs") from None
    return [path for path in paths if os.path.exists(path)], [path for path in paths if not os.path.exists(path)]


def measure(
    model: FaceModel, sets: Sequence[str], groups: str | None, columns: Sequence[str], far: float, batch_size: int
) -> Figures:
    """Verifies the model on sets of pairs; the first one determines the threshold of ``far`` and has the groups.

    Raises:
        OSError, ValueError: A set, or the CSV file of the groups, cannot be used.
    """
    if groups and not sets:
        raise ValueError(f"{groups} has groups, but there is no set of pairs: name one with --pairs")
    measured: dict[str, SetFigures] = {}
    rates_of_groups: dict[str, dict[str, PairRates]] = {}
    threshold = None
    for path in sets:
        images, issame = read_pairs(path)
        # Read before the images are embedded, which takes minutes, so that mistakes in the file show at once.
        groups_by_column = read_groups(groups, columns, issame) if groups and threshold is None else {}
        verification, distance, embeddings = verify_model(model, images, issame, path, batch_size)
        norms = np.linalg.norm(embeddings, axis=1)
        if threshold is None:
            threshold = shared_threshold(distance, issame, far)
            for column, names in groups_by_column.items():
                rates_of_groups[column] = rates_by_group(distance, issame, names, threshold)
        name = os.path.splitext(os.path.basename(path))[0]
        measured[path if name in measured else name] = SetFigures(
            distance,
            issame,
            verification,
            correct_pairs(distance, issame, FOLDS),
            float(norms.mean()),
            pair_rates(distance, issame, threshold),
            rates_by_rejection(distance, issame, norms, images, threshold, REJECTED),
        )
    return Figures(far, threshold, measured, rates_of_groups)
