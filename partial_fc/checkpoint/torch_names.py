"""Converts the weights of a backbone between MXNet's arrays and a state_dict of PyTorch.

MXNet names its arrays ``arg:<name>`` (parameters) and ``aux:<name>`` (running statistics). What differs besides names:

- Pixels. MXNet's networks compute (x - 127.5) / 128 themselves, PyTorch's get (x - 127.5) / 127.5. The factor 255/256
  goes into the first convolution, which has no bias, because a state_dict is read by programs that know only the
  published normalization. It costs one rounding of float32, so a weight that goes there and back may change in its last
  bit.
- The batch norm of the embedding has the scale 1. MXNet ignores the stored one, PyTorch uses it.
- PyTorch counts the batches of a batch norm, but does not use the number with a fixed momentum: it is 0.
- Epsilon of the batch norms, which neither file contains: `EPS`. A network keeps the one it was trained with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from partial_fc.utils.text import some

from .backbone_layers import ARRAYS, layers

# Of the published models of each framework. The body of mbf has 1e-3 in both.
EPS = {"mxnet": 2e-5, "torch": 1e-5}
PIXELS = 255 / 256
COUNTER = "num_batches_tracked"


def torch_names(network: str) -> dict[str, str]:
    """Returns MXNet's ``arg:<name>`` or ``aux:<name>`` -> key of the state_dict, in the order of the layers.

    Raises:
        ValueError: The network is not one of both trainers.
    """
    return {
        mxnet.format(layer.mxnet): torch.format(layer.torch)
        for layer in layers(network)
        for mxnet, torch in ARRAYS[layer.kind].items()
    }


def to_torch(network: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts weights of MXNet.

    Args:
        network: name of the backbone.
        arrays: ``arg:<name>`` and ``aux:<name>`` -> float32.

    Returns:
        A state_dict: key -> float32, the counters int64.

    Raises:
        ValueError: They are not the weights of this network; the message has the first names that differ.
    """
    names = torch_names(network)
    require_same_names(names, arrays)
    state: dict[str, np.ndarray] = {}
    for layer in layers(network):
        for mxnet, torch in ARRAYS[layer.kind].items():
            state[torch.format(layer.torch)] = np.asarray(arrays[mxnet.format(layer.mxnet)], np.float32)
        if layer.kind == "batch_norm":
            state[f"{layer.torch}.{COUNTER}"] = np.zeros((), np.int64)
    first, last = _ends(names)
    state[names[first]] = _scaled(state[names[first]], PIXELS)
    state[names[last]] = np.ones_like(state[names[last]])
    return state


def to_mxnet(network: str, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts a state_dict to ``arg:<name>`` and ``aux:<name>`` -> float32, see `to_torch`.

    Raises:
        ValueError: It is not a state_dict of this network; the message has the first names that differ. Or the scale of
            the embedding's batch norm is not 1, which MXNet's network cannot compute.
    """
    names = torch_names(network)
    require_same_names(list(names.values()), [key for key in state if not key.endswith(COUNTER)])
    arrays = {mxnet: np.asarray(state[torch], np.float32) for mxnet, torch in names.items()}
    first, last = _ends(names)
    if (arrays[last] != 1).any():
        raise ValueError(f"{names[last]} is not 1 everywhere, but MXNet's {network} has no such scale")
    arrays[first] = _scaled(arrays[first], 1 / PIXELS)
    return arrays


def require_same_names(expected: Collection[str], names: Collection[str]) -> None:
    """Checks that weights have the expected names.

    Raises:
        ValueError: They have not; the message has the first names of those missing and of the unexpected ones.
    """
    missing = [name for name in expected if name not in names]
    unexpected = [name for name in names if name not in expected]
    problems = [f"lacks {some(missing)}"] if missing else []
    problems += [f"has the unexpected {some(unexpected)}"] if unexpected else []
    if problems:
        raise ValueError(f"it {' and '.join(problems)}: these are weights of another network")


def _ends(names: Mapping[str, str]) -> tuple[str, str]:
    """Returns MXNet's names of the convolution of the pixels and of the scale of the embedding."""
    return next(iter(names)), "arg:fc1_gamma"


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return (array.astype(np.float64) * factor).astype(np.float32)
