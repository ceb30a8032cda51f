"""Weights of a backbone from files of either trainer, of arcface_torch, and of the original MXNet trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from partial_fc.checkpoint import verify_share
from partial_fc.checkpoint.backbone import read_backbone
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.checkpoint.torch_names import COUNTER, EPS, require_same_names, to_torch
from partial_fc.training.pretrained import pretrained_from_files

from .backbones import Backbone

FILES = ("backbone.pth", "model.pt")  # of arcface_torch: since 2021-05, and since 2021-11
ENDINGS = (".pth", ".pt")
# Name of the array that holds epsilon in a checkpoint of this trainer; its other arrays are ``arg:<key>`` of a
# parameter and ``aux:<key>`` of a running statistic, with the key of the state_dict.
EPS_ARRAY = "eps"


class Weights(NamedTuple):
    """Weights of a backbone.

    Attributes:
        source: their path, for messages.
        state: key of the state_dict -> tensor on the CPU.
        eps: epsilon of the batch norms with which they were trained.
    """

    source: str
    state: dict[str, torch.Tensor]
    eps: float


def read_weights(path: str, network: str, rank: int = 0, size: int = 1) -> Weights:
    """Reads the weights of a backbone.

    Args:
        path: of a ``.pth`` or ``.pt`` file with a state_dict, of MXNet's ``.params``, of a folder that has one of them,
            or of a checkpoint's folder.
        network: name of the backbone, which determines the names in files of MXNet.
        rank, size: number of this rank, and R. The ranks share the verification of a checkpoint.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file is damaged, or has the weights of another network; the message names it.
    """
    found = [name for name in FILES if os.path.isfile(os.path.join(path, name))]
    if os.path.isfile(os.path.join(path, MANIFEST)):
        manifest = verify_share(path, rank, size, lambda: None)
        return weights_from_arrays(path, read_backbone(path, manifest, rank, size), network)
    if len(found) > 1:
        raise ValueError(f"{path} contains {' and '.join(found)}: give the path of one")
    if found:
        path = os.path.join(path, found[0])
    if path.endswith(ENDINGS):
        return Weights(path, _read_state(path), EPS["torch"])
    pretrained = pretrained_from_files(path, with_classes=False)
    return weights_from_arrays(pretrained.source, pretrained.weights, network)


def weights_from_arrays(source: str, arrays: Mapping[str, np.ndarray], network: str) -> Weights:
    """Returns the weights among the arrays of a checkpoint, or of MXNet's files.

    Args:
        source: path of the arrays, for messages.
        arrays: ``arg:<name>`` and ``aux:<name>`` with names of either trainer; optimizer states are ignored.
        network: name of the backbone.

    Raises:
        ValueError: These are weights of another network.
    """
    named = {name: array for name, array in arrays.items() if name.startswith(("arg:", "aux:"))}
    if "arg:fc1_beta" not in named:  # which every network of MXNet has
        state = {name.partition(":")[2]: array for name, array in named.items()}
        return Weights(source, _tensors(state), float(arrays.get(EPS_ARRAY, EPS["torch"])))
    try:
        return Weights(source, _tensors(to_torch(network, named)), EPS["mxnet"])
    except ValueError as error:
        raise ValueError(f"{source} does not fit {network}: {error}") from None


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Sets all parameters and running statistics of a model; one of this package also gets the epsilon.

    Raises:
        ValueError: These are weights of another network. The message has the first keys that differ.
    """
    own = model.state_dict()
    # Old files have no counters, and no batch norm of these networks uses them.
    counters = {key: value for key, value in own.items() if key.endswith(COUNTER)}
    state = {**counters, **weights.state}
    try:
        require_same_names(list(own), list(state))
        for key, value in own.items():
            if state[key].shape != value.shape:
                shapes = f"{tuple(state[key].shape)}, expected {tuple(value.shape)}"
                raise ValueError(f"{key} has the shape {shapes}: these are weights of another network")
    except ValueError as error:
        raise ValueError(f"{weights.source} does not fit this backbone: {error}") from None
    model.load_state_dict(state)
    if isinstance(model, Backbone):
        model.eps = weights.eps


def _read_state(path: str) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of pickle, zipfile and torch, without a common base class
        raise ValueError(f"{path} is damaged, or contains other objects than tensors: {error}") from None
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(f"{path} is not a state_dict, which has a tensor for every key: save model.state_dict()")
    return dict(state)


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(np.array(array)) for key, array in arrays.items()}
