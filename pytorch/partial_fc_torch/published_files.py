"""Files of weights and centers in PyTorch's format: of this trainer, of the tutorial's and of arcface_torch.

- ``backbone.pth``, ``model.pt``: a state_dict of the backbone.
- ``rank_<r>_softmax_weight.pt`` and ``..._mom.pt``: (L, E), centers and momentum of rank r.
- ``checkpoint_gpu_<r>.pt`` of arcface_torch: ``state_dict_backbone``, and ``state_dict_softmax_fc`` with the ``weight``
  (L, E) of rank r. Their optimizer is not read.

The classes of the ranks follow one another. No code in a file is run.

Shapes: L classes of a rank, E embedding.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from partial_fc.checkpoint import SavedClasses
from partial_fc.training.pretrained import Pretrained

from .errors import error_message
from .weights import to_array

STATE_DICTS = ("backbone.pth", "model.pt")  # of this trainer and the tutorial's; of later arcface_torch
CHECKPOINT, CENTERS, MOMENTUM = "checkpoint_gpu_{}.pt", "rank_{}_softmax_weight.pt", "rank_{}_softmax_weight_mom.pt"
ENDINGS = (".pth", ".pt")


def read_pretrained(path: str, with_classes: bool) -> Pretrained | None:
    """Reads a backbone and, if requested, the class centers beside it, see Framework.read_pretrained.

    Args:
        path: of a state_dict or of a ``checkpoint_gpu_<r>.pt``, or of the folder of one of them.
        with_classes: whether to read the class centers.

    Raises:
        OSError: A file cannot be read.
        ValueError: It is damaged or holds something else. Objects other than tensors and plain values are refused.
    """
    names = [name for name in (*STATE_DICTS, CHECKPOINT.format(0)) if os.path.isfile(os.path.join(path, name))]
    if len(names) > 1:
        raise ValueError(f"{path} contains {' and '.join(names)}: give the path of one")
    if names:
        path = os.path.join(path, names[0])
    if not path.endswith(ENDINGS):
        return None
    state = _load(path)
    if isinstance(state, Mapping) and "state_dict_backbone" in state:
        state = state["state_dict_backbone"]
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(f"{path} is not a state_dict, which has a tensor for every key: save model.state_dict()")
    weights = {f"arg:{key}": to_array(value) for key, value in state.items()}
    return Pretrained(path, weights, None, _read_classes(os.path.dirname(path) or ".") if with_classes else None)


def _read_classes(folder: str) -> SavedClasses:
    weight, weight_mom = (_rows_of_ranks(folder, name, lambda rows: rows) for name in (CENTERS, MOMENTUM))
    if not weight:
        weight = _rows_of_ranks(folder, CHECKPOINT, lambda saved: saved["state_dict_softmax_fc"]["weight"])
    if not weight:
        names = f"{CENTERS.format(0)} or {CHECKPOINT.format(0)}"
        raise ValueError(f"{folder} has no class centers, {names}: leave class_map empty, or copy those of all ranks")
    return SavedClasses.of_ranks(folder, weight, weight_mom)


def _rows_of_ranks(folder: str, name: str, select) -> list[np.ndarray]:
    """The rows (L, E) of each rank, mapped into memory where the file allows it."""
    pattern = re.escape(name).replace(r"\{\}", r"\d+")
    ranks = sum(re.fullmatch(pattern, each) is not None for each in os.listdir(folder))
    return [_rows(os.path.join(folder, name.format(rank)), select) for rank in range(ranks)]


def _rows(path: str, select) -> np.ndarray:
    try:
        rows = select(_load(path))
    except (KeyError, TypeError):
        rows = None
    if not isinstance(rows, torch.Tensor) or rows.dim() != 2 or not rows.is_floating_point():
        raise ValueError(f"{path} has no tensor (classes, embedding size) of centers: copy the file again")
    array: np.ndarray = rows.detach().float().numpy()
    return array


def _load(path: str) -> Any:
    try:
        # Files of PyTorch before 1.6 cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # of pickle, zipfile and torch, without a common base class
        message = error_message(error).splitlines()[0]
        raise ValueError(f"{path} is damaged, or contains other objects than tensors: {message}") from None
