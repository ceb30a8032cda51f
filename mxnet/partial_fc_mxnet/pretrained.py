"""Weights to begin a new training with: of a checkpoint, or of the files that MXNet and the original trainer write."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import SavedClasses
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.checkpoint.mxnet_params import named_arrays

from . import collectives
from .saved_training import SavedTraining


class Pretrained(NamedTuple):
    """What was found.

    Attributes:
        source: the path, for messages.
        weights: ``arg:<name>`` and ``aux:<name>`` -> float32 array.
        classes: centers and momentum by class, where they were asked for.
    """

    source: str
    weights: dict[str, np.ndarray]
    classes: SavedClasses | None


def read_pretrained(path: str, with_classes: bool) -> Pretrained:
    """Reads the weights of a backbone, and class centers where they are wanted.

    Args:
        path: the folder of a checkpoint; or a ``.params`` file, or the folder it is in, beside which the
            ``<rank>_centers.param`` of all ranks are.
        with_classes: read the centers too.

    Raises:
        JobError: on every rank, where something is missing or damaged; names the file.
    """
    if os.path.exists(os.path.join(path, MANIFEST)):
        saved = SavedTraining.open(path)
        return collectives.run_on_all_ranks("pretrained", lambda: _of_checkpoint(saved, with_classes))
    return collectives.run_on_all_ranks("pretrained", lambda: _of_files(path, with_classes))


def _of_checkpoint(saved: SavedTraining, with_classes: bool) -> Pretrained:
    return Pretrained(saved.path, saved.weights(), saved.classes() if with_classes else None)


def _of_files(path: str, with_classes: bool) -> Pretrained:
    path = _params_file(path)
    try:
        arrays = named_arrays(path)
    except ValueError as error:
        raise ValueError(f"cannot read the parameters in {path}: {error}") from None
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Pretrained(path, weights, SavedClasses.of_original(os.path.dirname(path)) if with_classes else None)


def _params_file(path: str) -> str:
    """The one ``.params`` file that is meant."""
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} is not there: --pretrained takes a checkpoint's folder or a .params file")
    names = sorted(name for name in os.listdir(path) if name.endswith(".params"))
    if len(names) != 1:
        what = "several .params files" if names else "neither a checkpoint nor a .params file"
        raise ValueError(f"{path} holds {what}: give the path of one with --pretrained")
    return os.path.join(path, names[0])
