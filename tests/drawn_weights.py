"""Random backbone weights, the same in every environment: they depend only on the name and shape of each array."""

import zlib
from collections.abc import Mapping

import numpy as np

from partial_fc.checkpoint.torch_names import torch_names


def draw_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns MXNet's name -> float32 array. Slopes have both signs, scales differ from 1 and means from 0."""
    return {name: _draw(name, shape).astype(np.float32) for name, shape in shapes.items()}


def mxnet_weights(network, state):
    """Returns ``arg:`` and ``aux:`` arrays as MXNet saves them, for a network with this PyTorch state_dict."""
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
