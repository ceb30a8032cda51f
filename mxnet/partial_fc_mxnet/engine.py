"""EngineMethods: the methods of partial_fc.training.engine.Engine that do not train: embed, save, restore.

A checkpoint names parameters and running statistics as MXNet's own files do: ``arg:<name>`` and ``aux:<name>``.
``state:<name>:<index>`` is an optimizer state of a parameter. The index is empty if the state is one array, and ``0``,
``1`` or ``0.1`` within a tuple (float16 parameters: momentum, then float32 master weights).

Shapes: N images, B local batch, E embedding, H, W image size.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import mxnet as mx
import numpy as np

from partial_fc.checkpoint.torch_names import master_copy, with_mxnet_names
from partial_fc.data.batch import Inputs
from partial_fc.utils.text import some

from .ops import module_arrays

Arrays = dict[str, np.ndarray]

RANDOM_OPERATORS = {"Dropout", "RReLU"}


class EngineMethods:
    """Methods of Engine for DataParallelModule."""

    symbol: mx.sym.Symbol
    network: str
    context: mx.Context

    @property
    def device(self) -> mx.Context:
        return self.context

    @property
    def on_gpu(self) -> bool:
        return self.context.device_type == "gpu"

    averages_weights = False
    facts: dict[str, str] = {}
    head_losses: dict[str, mx.nd.NDArray] = {}  # only the PyTorch trainer has heads

    @property
    def draws_random_numbers(self) -> bool:
        operators = [node["op"] for node in json.loads(self.symbol.tojson())["nodes"]]
        return any(name in RANDOM_OPERATORS or name.startswith(("_random", "_sample")) for name in operators)

    def final_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def seed_generators(self, seed: int) -> None:
        mx.random.seed(seed)

    def embed(self, inputs: Inputs, batch_statistics: bool = False, averaged: bool = False) -> np.ndarray:
        """See Engine.embed. Fewer than B images are padded with zeros, which ``batch_statistics`` then include."""
        module = module_arrays.backbone(self)
        batch = np.zeros(module.data_shapes[0].shape, np.float32)
        batch[: len(inputs)] = inputs
        running = module_arrays.statistics(self) if batch_statistics else {}
        saved = {name: array.copy() for name, array in running.items()}
        module.forward(mx.io.DataBatch([mx.nd.array(batch, ctx=self.context)]), is_train=batch_statistics)
        embeddings: np.ndarray = module.get_outputs()[0].asnumpy()
        for name, array in saved.items():  # cuDNN's batch norm updates the running statistics in the forward pass
            running[name][:] = array
        return embeddings[: len(inputs)]

    def nonfinite_parameter(self) -> str | None:
        parameters = module_arrays.parameters(self)
        if module_arrays.all_finite(list(parameters.values())):
            return None
        return next(name for name, array in parameters.items() if not module_arrays.all_finite([array]))

    def parameters(self) -> Arrays:
        arg_params, _ = module_arrays.export(self)
        arrays = {f"arg:{name}": array.asnumpy() for name, array in arg_params.items()}
        states = module_arrays.backbone(self)._updater.states
        for index, name in enumerate(module_arrays.parameter_names(self)):
            for state_index, array in _leaves(states.get(index)):
                arrays[f"state:{name}:{state_index}"] = array.asnumpy()
        return arrays

    def statistics(self) -> Arrays:
        _, aux_params = module_arrays.export(self)
        return {f"aux:{name}": array.asnumpy() for name, array in aux_params.items()}

    def set_weights(self, arrays: Arrays) -> None:
        backbone = module_arrays.backbone(self)
        arg_params, aux_params = backbone.get_params()
        arrays = self._named(arrays)
        for name, current in arg_params.items():
            master = master_copy(arrays, name) if current.dtype == np.float32 else None
            if master is not None:  # from a training in float16
                arrays[f"arg:{name}"] = master
        backbone.set_params(_select(arrays, "arg", arg_params), _select(arrays, "aux", aux_params))

    def restore(self, arrays: Arrays, num_update: int) -> None:
        self.set_weights(arrays)
        backbone, arrays = module_arrays.backbone(self), self._named(arrays)
        optimizer, updater = backbone._optimizer, backbone._updater
        unused = {name for name in arrays if name.startswith("state:")}
        for index, (name, weight) in enumerate(module_arrays.parameters(self).items()):
            optimizer._index_update_count[index] = num_update
            if not any(key.startswith(f"state:{name}:") for key in unused):
                continue  # no saved state, as with SGD without momentum
            state = optimizer.create_state_multi_precision(index, weight)
            for state_index, array in _leaves(state):
                key = _state_key(arrays, name, state_index)
                _copy(key, arrays, array)
                unused.discard(key)
            if weight.dtype == np.float32 and master_copy(arrays, name) is not None:
                unused.discard(f"state:{name}:1")  # the master weights, which set_weights has used
            updater.states[index], updater.states_synced[index] = state, True
        if unused:
            raise ValueError(
                f"it holds {some(sorted(unused))}, which this training's optimizer lacks: set momentum as it was"
            )
        optimizer.num_update = num_update

    def _named(self, arrays: Arrays) -> Arrays:
        return with_mxnet_names(self.network, arrays) if self.network else dict(arrays)


def _leaves(state, index: str = "") -> Iterator[tuple[str, mx.nd.NDArray]]:
    """Yields (index, array) of an optimizer's state, which is an array, None, or a tuple of states."""
    if isinstance(state, mx.nd.NDArray):
        yield index, state
    elif state is not None:
        for number, part in enumerate(state):
            yield from _leaves(part, f"{index}.{number}" if index else str(number))


def _state_key(arrays: Arrays, name: str, index: str) -> str:
    """Returns the checkpoint's key of a parameter's state; the saved training may have used another dtype."""
    saved_in_float32 = f"state:{name}:" in arrays
    if index == "1" and saved_in_float32:  # the master weights are the saved weights
        return f"arg:{name}"
    if index == "0" and saved_in_float32:
        return f"state:{name}:"
    if not index and master_copy(arrays, name) is not None:  # saved in float16: momentum, then master weights
        return f"state:{name}:0"
    return f"state:{name}:{index}"


def _select(arrays: Arrays, kind: str, current: dict[str, mx.nd.NDArray]) -> dict[str, mx.nd.NDArray]:
    missing = {name for name in current if f"{kind}:{name}" not in arrays}
    if missing:
        raise ValueError(f"it has no {some(sorted(missing))}, which this backbone needs: train the same network")
    selected = {name: array.copy() for name, array in current.items()}
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
