"""Weights of backbones, the same in every environment: they depend on the name and shape of each array alone."""

import zlib
from collections.abc import Mapping

import numpy as np

from partial_fc.checkpoint.torch_names import torch_names


def draw_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """MXNet's name -> float32 array that reveals mistakes: slopes of both signs, scales far from 1, means from 0."""
    return {name: _draw(name, shape).astype(np.float32) for name, shape in shapes.items()}


def mxnet_weights(network, state):
    """``arg:`` and ``aux:`` arrays as MXNet saves them, for a network with this state_dict in PyTorch."""
    shapes = {name.partition(":")[2]: tuple(state[key].shape) for name, key in torch_names(network).items()}
    return dict(zip(torch_names(network), draw_weights(shapes).values()))


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("gamma"):
        return rng.uniform(-0.4, 0.6, shape) if "relu" in name else rng.uniform(0.5, 1.5, shape)
    if name.endswith("var"):
        return rng.uniform(0.5, 2, shape)
    if name.endswith(("beta", "bias", "mean")):
        return rng.normal(0, 0.3, shape)
    return rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
