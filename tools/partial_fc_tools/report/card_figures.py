"""Measures the figures of a model card.

Shapes: P pairs of a set; images 2p and 2p + 1 form pair p.
"""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.verification import Verification
from partial_fc.export.model import FaceModel
from partial_fc.training.inputs import validation_sets
from partial_fc.utils.config import read_settings
from partial_fc_tools.verify.command import verify_model

from .pair_groups import read_groups


class SetFigures(NamedTuple):
    """Figures of a set of pairs."""

    images: Sequence[bytes]  # 2P, encoded
    issame: np.ndarray  # (P,) bool
    distance: np.ndarray  # (P,) squared distances
    norms: np.ndarray  # (2P,) norms of the embeddings
    verification: Verification  # over ten folds


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
    model: FaceModel, paths: Sequence[str], csv: str | None, columns: Sequence[str], batch_size: int
) -> tuple[dict[str, SetFigures], dict[str, list[str]]]:
    """Verifies the model on sets of pairs.

    Returns:
        The figures of each set by name, and the groups of the first set's pairs: column of the CSV file -> P names.

    Raises:
        OSError, ValueError: A set, or the CSV file of the groups, cannot be used.
    """
    if csv and not paths:
        raise ValueError(f"{csv} has groups, but there is no set of pairs: name one with --pairs")
    sets: dict[str, SetFigures] = {}
    groups: dict[str, list[str]] = {}
    for path in paths:
        images, issame = read_pairs(path)
        if csv and not sets:  # before the images are embedded, which takes minutes: mistakes in the file show at once
            groups = read_groups(csv, columns, issame)
        verification, distance, embeddings = verify_model(model, images, issame, path, batch_size)
        name = os.path.splitext(os.path.basename(path))[0]
        norms = np.linalg.norm(embeddings, axis=1)
        sets[path if name in sets else name] = SetFigures(images, issame, distance, norms, verification)
    return sets, groups
