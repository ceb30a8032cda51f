"""The arrays of a Module that is bound to one device."""

from __future__ import annotations

import mxnet as mx
import numpy as np


def parameters(module: mx.mod.Module) -> dict[str, mx.nd.NDArray]:
    """The parameters that its operators read, by name, on its device."""
    group = module._exec_group
    return {name: arrays[0] for name, arrays in zip(group.param_names, group.param_arrays)}


def statistics(module: mx.mod.Module) -> dict[str, mx.nd.NDArray]:
    """The running statistics, likewise."""
    group = module._exec_group
    return {name: arrays[0] for name, arrays in zip(group.aux_names, group.aux_arrays)}


def export(module: mx.mod.Module) -> tuple[dict[str, mx.nd.NDArray], dict[str, mx.nd.NDArray]]:
    """Parameters and running statistics on the host, float32 whatever they are on the device."""
    arg_params, aux_params = module.get_params()
    return _float32(arg_params), _float32(aux_params)


def _float32(params):
    return {name: array.astype(np.float32, copy=False) for name, array in params.items()}
