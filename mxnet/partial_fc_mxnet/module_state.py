"""State of a SampleDistributeModule on which the next update depends, as NumPy arrays by name and as JSON.

``arg:<name>`` is a parameter and ``aux:<name>`` a running statistic, both float32, named as in MXNet's own files.
``state:<name>:<place>`` is an optimizer state of a parameter. The place is empty if the state is one array, and ``0``,
``1`` or ``0.1`` if it is a tuple of them (float16 parameters: momentum, then float32 master weights).

The class centers are not part of it, see SavedClasses.
"""

from __future__ import annotations

from collections.abc import Iterator

import mxnet as mx
import numpy as np

from partial_fc.utils.text import some

from .ops import module_arrays

Arrays = dict[str, np.ndarray]

_LOSS_SCALE = ("scale", "good_steps", "skipped")  # the state of a LossScale


def parameters(module) -> Arrays:
    """Returns copies of parameters and optimizer states on the host; they are the same on every rank."""
    arg_params, _ = module_arrays.export(module)
    arrays = {f"arg:{name}": array.asnumpy() for name, array in arg_params.items()}
    states = module_arrays.backbone(module)._updater.states
    for index, name in enumerate(module_arrays.parameter_names(module)):
        for place, array in _leaves(states.get(index)):
            arrays[f"state:{name}:{place}"] = array.asnumpy()
    return arrays


def statistics(module) -> Arrays:
    """Returns copies of the running statistics on the host; every rank has those of its own images."""
    _, aux_params = module_arrays.export(module)
    return {f"aux:{name}": array.asnumpy() for name, array in aux_params.items()}


def progress(module) -> dict:
    """Returns counters, position in the data and loss scale as JSON."""
    scale = module.loss_scale
    return {
        "num_update": module.num_update,
        "num_epoch": module.num_epoch,
        "data": module.data_state,
        "loss_scale": scale and {name: getattr(scale, name) for name in _LOSS_SCALE},
    }


def set_weights(module, arrays: Arrays) -> None:
    """Sets all parameters and running statistics of a module to those in ``arrays``.

    Raises:
        ValueError: One is missing or has another shape.
    """
    backbone = module_arrays.backbone(module)
    arg_params, aux_params = backbone.get_params()
    new_params = [_select(arrays, kind, own) for kind, own in (("arg", arg_params), ("aux", aux_params))]
    backbone.set_params(*new_params)


def set_optimizer(module, arrays: Arrays, num_update: int) -> None:
    """Sets the states of a module's optimizer to those in ``arrays``; call set_weights first.

    Args:
        module: with an initialized optimizer.
        arrays: as :func:`parameters` returns them.
        num_update: number of updates done, which determines the learning rate.

    Raises:
        ValueError: The states are those of another optimizer.
    """
    backbone = module_arrays.backbone(module)
    optimizer, updater = backbone._optimizer, backbone._updater
    unused = {name for name in arrays if name.startswith("state:")}
    for index, (name, weight) in enumerate(module_arrays.parameters(module).items()):
        optimizer._index_update_count[index] = num_update
        if not any(key.startswith(f"state:{name}:") for key in unused):
            continue  # such as SGD without momentum
        state = optimizer.create_state_multi_precision(index, weight)
        for place, array in _leaves(state):
            key = f"state:{name}:{place}"
            _copy(key, arrays, array)
            unused.discard(key)
        updater.states[index], updater.states_synced[index] = state, True
    if unused:
        raise ValueError(
            f"it holds {some(sorted(unused))} of an optimizer that this training does not have: set momentum"
        )
    optimizer.num_update = num_update


def set_progress(module, state: dict, num_update: int) -> None:
    """Sets the counters and the loss scale of a module to those that :func:`progress` returned."""
    module.num_update, module.num_epoch = num_update, state.get("num_epoch", 0)
    scale = state.get("loss_scale")
    if module.loss_scale is not None and scale:
        for name in _LOSS_SCALE:
            setattr(module.loss_scale, name, scale[name])


def _leaves(state, place: str = "") -> Iterator[tuple[str, mx.nd.NDArray]]:
    """Yields (place, array) of an optimizer's state, which is an array, None, or a tuple of states."""
    if isinstance(state, mx.nd.NDArray):
        yield place, state
    elif state is not None:
        for number, part in enumerate(state):
            yield from _leaves(part, f"{place}.{number}" if place else str(number))


def _select(arrays: Arrays, kind: str, own: dict[str, mx.nd.NDArray]) -> dict[str, mx.nd.NDArray]:
    missing = {name for name in own if f"{kind}:{name}" not in arrays}
    if missing:
        raise ValueError(f"it has no {some(sorted(missing))}, which this backbone needs: train the same network")
    selected = {name: array.copy() for name, array in own.items()}
    for name, array in selected.items():
        _copy(f"{kind}:{name}", arrays, array)
    return selected


def _copy(key: str, arrays: Arrays, array: mx.nd.NDArray) -> None:
    if key not in arrays or arrays[key].shape != array.shape:
        problem = f"has shape {arrays[key].shape}" if key in arrays else "is missing"
        raise ValueError(
            f"{key} {problem}, expected {array.shape} as in this training: train the same network and optimizer"
        )
    array[:] = arrays[key]
