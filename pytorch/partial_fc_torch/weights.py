"""Weights of a backbone as arrays, for checkpoints, and from files of either trainer and of arcface_torch.

Names of the arrays: ``arg:<key>``, and ``aux:<key>`` for a statistic that each rank has of its own images, with the key
of the state_dict. ``eps`` is the epsilon of the batch norms, which a state_dict does not contain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from partial_fc.checkpoint.torch_names import COUNTER, EPS, require_same_names, to_torch

from .backbones import Backbone

Arrays = dict[str, np.ndarray]

FILES = ("backbone.pth", "model.pt")  # of this trainer and the tutorial's; of later arcface_torch
ENDINGS = (".pth", ".pt")
MXNET = "arg:fc1_beta"  # every backbone of MXNet has it


def parameter_arrays(model: nn.Module) -> Arrays:
    """Returns copies of all parameters, and of the buffers that are the same on every rank: integers."""
    statistics = statistic_arrays(model)
    arrays = {
        f"arg:{key}": _array(value) for key, value in model.state_dict().items() if f"aux:{key}" not in statistics
    }
    return {**arrays, "eps": np.array(model.eps)} if isinstance(model, Backbone) else arrays


def statistic_arrays(model: nn.Module) -> Arrays:
    """Returns copies of the buffers of floating-point numbers, such as running means and variances."""
    buffers, state = dict(model.named_buffers()), model.state_dict()
    return {f"aux:{key}": _array(state[key]) for key in buffers if key in state and state[key].is_floating_point()}


def read_weights(path: str) -> tuple[str, Arrays] | None:
    """Reads a file with a state_dict, see Engine.read_weights; a folder has it under one of the names `FILES`.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged or no state_dict. Objects other than tensors are refused, as their pickles run code.
    """
    found = [name for name in FILES if os.path.isfile(os.path.join(path, name))]
    if len(found) > 1:
        raise ValueError(f"{path} contains {' and '.join(found)}: give the path of one")
    if found:
        path = os.path.join(path, found[0])
    if not path.endswith(ENDINGS):
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of pickle, zipfile and torch, without a common base class
        raise ValueError(f"{path} is damaged, or contains other objects than tensors: {error}") from None
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(f"{path} is not a state_dict, which has a tensor for every key: save model.state_dict()")
    return path, {f"arg:{key}": _array(value) for key, value in state.items()}


def set_weights(model: nn.Module, arrays: Mapping[str, np.ndarray], network: str) -> None:
    """Sets all parameters and buffers of a model; one of this package also gets the epsilon of the weights.

    Args:
        model: the backbone.
        arrays: see above, or ``arg:`` and ``aux:`` arrays of MXNet; others, such as optimizer states, are ignored.
        network: name of the backbone, which determines the names of MXNet's arrays.

    Raises:
        ValueError: These are weights of another network. The message has the first names that differ.
    """
    named = {name: array for name, array in arrays.items() if name.startswith(("arg:", "aux:"))}
    if MXNET in named:
        state, eps = to_torch(network, named), EPS["mxnet"]
    else:
        state = {name.partition(":")[2]: array for name, array in named.items()}
        eps = float(arrays.get("eps", EPS["torch"]))
    own = model.state_dict()
    # Old files have no counters, and no batch norm of these networks uses them.
    counters = {key: _array(value) for key, value in own.items() if key.endswith(COUNTER)}
    state = {**counters, **state}
    require_same_names(list(own), list(state))
    for key, value in own.items():
        if state[key].shape != value.shape:
            raise ValueError(
                f"{key} has the shape {state[key].shape}, expected {tuple(value.shape)} as in this training"
            )
    model.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in state.items()})
    if isinstance(model, Backbone):
        model.eps = eps


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy on the host; numbers of 16 bits become float32."""
    short = tensor.dtype in (torch.float16, torch.bfloat16)
    array: np.ndarray = tensor.detach().to("cpu", torch.float32 if short else tensor.dtype, copy=True).numpy()
    return array
