"""Measures what a model card shows.

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

    # distance, issame: (P,) squared distances, and kinds
    distance: np.ndarray
    issame: np.ndarray
    verification: Verification  # by ten folds
    correct: Rate  # pairs judged correctly in it
    xnorm: float  # mean norm of the embeddings
    rates: PairRates  # at the shared threshold
    rejection: Mapping[float, PairRates]  # rates without a share of the images, by that share


class Figures(NamedTuple):
    """Figures of a model card."""

    # far, threshold: false accept rate asked for, and the squared distance that gives it on the first set; None without
    # a set
    far: float
    threshold: float | None
    sets: Mapping[str, SetFigures]  # by name; the first one gives the threshold
    groups: Mapping[str, Mapping[str, PairRates]]  # column -> group -> rates on the first set


def sets_of_training(folder: str) -> tuple[list[str], list[str]]:
    """Returns the paths of the validation sets of a training: those that exist, and those that do not.

    Raises:
        OSError, ValueError: Its settings cannot be read.
    """
    path = os.path.join(folder, "settings.json")
    settings = SimpleNamespace(**{"debug": False, **read_settings(path)})
    try:
        paths = list(validation_sets(settings).values())
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path} does not say where the validation sets are ({error}): give them by --pairs") from None
    return [path for path in paths if os.path.exists(path)], [path for path in paths if not os.path.exists(path)]


def measure(
    model: FaceModel, sets: Sequence[str], groups: str | None, columns: Sequence[str], far: float, batch_size: int
) -> Figures:
    """Verifies the model on sets of pairs, of which the first gives the threshold of ``far`` and has the groups.

    Raises OSError or ValueError if a set or the CSV file of the groups cannot be used.
    """
    if groups and not sets:
        raise ValueError(f"{groups} has the groups of no set: give a set of pairs with --pairs")
    measured: dict[str, SetFigures] = {}
    by_column: dict[str, dict[str, PairRates]] = {}
    threshold = None
    for path in sets:
        images, issame = read_pairs(path)
        named = read_groups(groups, columns, issame) if groups and threshold is None else {}
        verification, distance, embeddings = verify_model(model, images, issame, path, batch_size)
        norms = np.linalg.norm(embeddings, axis=1)
        if threshold is None:
            threshold = shared_threshold(distance, issame, far)
            by_column = {name: rates_by_group(distance, issame, each, threshold) for name, each in named.items()}
        measured[_name(path, measured)] = SetFigures(
            distance,
            issame,
            verification,
            correct_pairs(distance, issame, FOLDS),
            float(norms.mean()),
            pair_rates(distance, issame, threshold),
            rates_by_rejection(distance, issame, norms, images, threshold, REJECTED),
        )
    return Figures(far, threshold, measured, by_column)


def _name(path: str, taken: Mapping[str, object]) -> str:
    name = os.path.splitext(os.path.basename(path))[0]
    return path if name in taken else name
