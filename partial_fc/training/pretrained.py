"""Weights that initialize a new training: from a checkpoint, or from files of the frameworks."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partial_fc.checkpoint import ModelFormat, SavedClasses, check_finite
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.checkpoint.mxnet_params import named_arrays


@dataclass(frozen=True)
class Pretrained:
    """Weights and, if requested, class centers. Raises ValueError for a weight that is not finite."""

    source: str  # their path, for messages
    weights: dict[str, np.ndarray]  # ``arg:<name>`` and ``aux:<name>`` -> float32 array
    model_format: ModelFormat | None  # of the weights; None if the file does not say, and the network keeps its own
    classes: SavedClasses | None = None  # centers by class; None if not requested

    def __post_init__(self) -> None:
        check_finite(self.source, self.weights)


# See Framework.read_pretrained.
ReadFiles = Callable[[str, bool], Pretrained | None]


def pretrained_from_files(path: str, with_classes: bool, read_files: ReadFiles) -> Pretrained:
    """Reads a file of the framework, or a ``.params`` file and the ``<rank>_centers.param`` of all ranks beside it.

    ``path`` is that of the file, or of the folder that contains it and no other ``.params`` file. Raises OSError or
    ValueError, with its name, if a file is missing or damaged.
    """
    own = read_files(path, with_classes)
    if own is not None:
        return own
    path = _params_file(path)
    try:
        arrays = named_arrays(path)
    except ValueError as error:
        raise ValueError(f"cannot read the parameters in {path}: {error}") from None
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Pretrained(path, weights, MXNET, SavedClasses.of_original(os.path.dirname(path)) if with_classes else None)


def _params_file(path: str) -> str:
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} does not exist: --pretrained takes a checkpoint's folder or a .params file")
    names = sorted(name for name in os.listdir(path) if name.endswith(".params"))
    if len(names) > 1:
        raise ValueError(f"{path} contains several .params files: give the path of one with --pretrained")
    if not names:
        raise ValueError(
            f"{path} contains neither a checkpoint nor weights: give the path of a checkpoint or a .params file with "
            "--pretrained, or in the PyTorch trainer of a state_dict, such as backbone.pth"
        )
    return os.path.join(path, names[0])
