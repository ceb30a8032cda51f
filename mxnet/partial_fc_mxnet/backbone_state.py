"""Everything about a backbone that the next update depends on, as NumPy arrays by name.

``arg:<name>`` is a parameter, ``aux:<name>`` a running statistic, both float32, as MXNet's own files name them.
``state:<name>:<place>`` is what the optimizer keeps of a parameter: the place is empty where that is one array, and
``0``, ``1`` or ``0.1`` where it is a tuple of them (float16 parameters: momentum, then float32 master weights).
"""

from __future__ import annotations

from collections.abc import Iterator

import mxnet as mx
import numpy as np

from .ops import module_arrays

Arrays = dict[str, np.ndarray]


def parameters(module: mx.mod.Module) -> Arrays:
    """Parameters and optimizer states, which are the same on every rank; copies on the host."""
    arg_params, _ = module_arrays.export(module)
    found = {f"arg:{name}": array.asnumpy() for name, array in arg_params.items()}
    for index, name in enumerate(module._exec_group.param_names):
        for place, array in _leaves(module._updater.states.get(index)):
            found[f"state:{name}:{place}"] = array.asnumpy()
    return found


def statistics(module: mx.mod.Module) -> Arrays:
    """The running statistics, which every rank has of its own images; copies on the host."""
    _, aux_params = module_arrays.export(module)
    return {f"aux:{name}": array.asnumpy() for name, array in aux_params.items()}


def set_weights(module: mx.mod.Module, arrays: Arrays) -> None:
    """Gives a module the parameters and running statistics in ``arrays``, which must be all it has.

    Raises:
        ValueError: one is missing, or has another shape.
    """
    arg_params, aux_params = module.get_params()
    taken = [_take(arrays, kind, own) for kind, own in (("arg", arg_params), ("aux", aux_params))]
    module.set_params(*taken)


def set_optimizer(module: mx.mod.Module, arrays: Arrays, num_update: int) -> None:
    """Gives a module's optimizer the states in ``arrays``; set_weights must have been before.

    Args:
        num_update: updates the optimizer has made, by which its learning rate goes on.

    Raises:
        ValueError: they are those of another optimizer.
    """
    optimizer, updater = module._optimizer, module._updater
    missing = {name for name in arrays if name.startswith("state:")}
    for index, (name, weight) in enumerate(module_arrays.parameters(module).items()):
        optimizer._index_update_count[index] = num_update
        if not any(key.startswith(f"state:{name}:") for key in missing):
            continue  # as for SGD without momentum
        state = optimizer.create_state_multi_precision(index, weight)
        for place, array in _leaves(state):
            key = f"state:{name}:{place}"
            _copy(key, arrays, array)
            missing.discard(key)
        updater.states[index], updater.states_synced[index] = state, True
    if missing:
        raise ValueError(f"it holds {_some(missing)} of an optimizer that this training does not have: set momentum")
    optimizer.num_update = num_update


def _leaves(state, place: str = "") -> Iterator[tuple[str, mx.nd.NDArray]]:
    """The arrays of an optimizer's state, which is one, none, or a tuple of states."""
    if isinstance(state, mx.nd.NDArray):
        yield place, state
    elif state is not None:
        for number, part in enumerate(state):
            yield from _leaves(part, f"{place}.{number}" if place else str(number))


def _take(arrays: Arrays, kind: str, own: dict[str, mx.nd.NDArray]) -> dict[str, mx.nd.NDArray]:
    missing = {name for name in own if f"{kind}:{name}" not in arrays}
    if missing:
        raise ValueError(f"it has no {_some(missing)}, which this backbone needs: train the same network")
    taken = {name: array.copy() for name, array in own.items()}
    for name, array in taken.items():
        _copy(f"{kind}:{name}", arrays, array)
    return taken


def _copy(key: str, arrays: Arrays, array: mx.nd.NDArray) -> None:
    if key not in arrays or arrays[key].shape != array.shape:
        found = f"has shape {arrays[key].shape}" if key in arrays else "is missing"
        raise ValueError(f"{key} {found}, this training's is {array.shape}: train the same network and optimizer")
    array[:] = arrays[key]


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
