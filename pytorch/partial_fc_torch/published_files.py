"""Files of weights and centers in PyTorch's format, written by this trainer, the tutorial's trainer or arcface_torch.

- ``model.safetensors``: the weights of the backbone.
- ``backbone.pth``, ``model.pt``: a state_dict of the backbone, or a checkpoint that has one.
- ``rank_<r>_softmax_weight.pt`` and ``..._mom.pt``: (L, E), centers and momentum of rank r.
- ``checkpoint_gpu_<r>.pt`` of arcface_torch: ``state_dict_backbone``, and ``state_dict_softmax_fc`` with the ``weight``
  (L, E) of rank r. arcface_checkpoint.py reads the optimizer states.

The classes of the ranks follow one another. Reading a file runs no code from it.

Shapes: L classes of a rank, E embedding.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from partial_fc.checkpoint import SavedClasses
from partial_fc.checkpoint.rank_files import ARCFACE_CHECKPOINT, files_of_ranks
from partial_fc.checkpoint.torch_names import without_wrappers
from partial_fc.export.torch_files import ENDINGS, WEIGHTS
from partial_fc.training.saved_training import Pretrained
from partial_fc.utils.text import some

from .center_files import center_file, load_tensors
from .weights import to_array

STATE_DICTS = ("backbone.pth", "model.pt")  # here and in the tutorial; in later versions of arcface_torch
# Keys of the state_dict in checkpoints of arcface_torch, Lightning and others.
STATE_DICT_KEYS = ("state_dict_backbone", "state_dict", "model_state_dict", "model", "backbone")
CENTERS_KEYS = ("state_dict_softmax_fc", "weight")  # keys of the centers


def read_pretrained(path: str, with_classes: bool) -> Pretrained | None:
    """Reads a backbone and, if requested, the class centers beside it, see Framework.read_pretrained.

    Args:
        path: path of a state_dict, of a ``checkpoint_gpu_<r>.pt``, or of the folder that contains one.
        with_classes: whether to read the class centers.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is damaged or has other content.
    """
    known = (WEIGHTS, *STATE_DICTS, ARCFACE_CHECKPOINT.format(0))
    names = [name for name in known if os.path.isfile(os.path.join(path, name))]
    if names[:2] == [WEIGHTS, STATE_DICTS[0]]:  # the trainer writes the same weights to both
        del names[1]
    if len(names) > 1:
        raise ValueError(f"{path} contains {' and '.join(names)}: give the path of one")
    if names:
        path = os.path.join(path, names[0])
    if not path.endswith(ENDINGS):
        return None
    state = content = load_tensors(path)
    if isinstance(content, Mapping):
        state = next((content[key] for key in STATE_DICT_KEYS if isinstance(content.get(key), Mapping)), content)
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        keys = f", but has the keys {some(list(map(str, state)))}" if isinstance(state, Mapping) else ""
        raise ValueError(
            f"{path} is not a state_dict, which has a tensor for every key, or a dictionary with one under "
            f"{' or '.join(STATE_DICT_KEYS)}{keys}: save model.state_dict()"
        )
    weights = {f"arg:{without_wrappers(key)}": to_array(value) for key, value in state.items()}
    if not with_classes:
        return Pretrained(path, weights, None, None)
    return Pretrained(path, weights, None, read_centers(os.path.dirname(path) or "."))


def read_centers(folder: str) -> SavedClasses:
    """Reads the class centers of all ranks, and SGD's momentum if it was saved.

    Raises:
        OSError: A file cannot be read.
        ValueError: There are none, or a file is damaged or has other content.
    """
    weight, weight_mom = (
        [[center_rows(file, load_tensors(file))] for file in files_of_ranks(folder, center_file(field))]
        for field in ("weight", "weight_mom")
    )
    if not weight:
        files = files_of_ranks(folder, ARCFACE_CHECKPOINT)
        weight = [[center_rows(file, load_tensors(file), *CENTERS_KEYS)] for file in files]
    if not weight:
        expected = f"{center_file('weight').format(0)} or {ARCFACE_CHECKPOINT.format(0)}"
        raise ValueError(
            f"{folder} has no class centers, {expected}: train without them, or copy the files of all ranks there"
        )
    return SavedClasses.of_ranks(folder, weight, weight_mom)


def center_rows(path: str, content: Any, *keys: str) -> np.ndarray:
    """Returns the centers (L, E) float32 under nested keys of a file; a ValueError names the file."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(content, torch.Tensor) or content.dim() != 2 or not content.is_floating_point():
        raise ValueError(f"{path} has no tensor (classes, embedding size) of centers: copy the file again")
    rows: np.ndarray = content.detach().float().numpy()
    return rows
