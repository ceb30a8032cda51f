"""Weights of a backbone as arrays, for checkpoints and for files of PyTorch.

Each entry of the state_dict becomes an array ``arg:<key>``, or ``aux:<key>`` if it is a running statistic, which
differs between ranks.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from partial_fc.checkpoint.torch_names import COUNTER, prefix_of, require_same_names, with_torch_names
from partial_fc.utils.text import some

from .backbones import Backbone, network_with

Arrays = dict[str, np.ndarray]


def parameter_arrays(model: nn.Module) -> Arrays:
    """Returns copies of all parameters and integer buffers, which are the same on every rank."""
    statistics, state = statistic_arrays(model), model.state_dict()
    return {f"arg:{key}": to_array(value) for key, value in state.items() if f"aux:{key}" not in statistics}


def statistic_arrays(model: nn.Module) -> Arrays:
    """Returns copies of the floating-point buffers, such as running means and variances."""
    buffers, state = dict(model.named_buffers()), model.state_dict()
    return {f"aux:{key}": to_array(state[key]) for key in buffers if key in state and state[key].is_floating_point()}


def set_weights(model: nn.Module, arrays: Mapping[str, np.ndarray], network: str) -> None:
    """Sets all parameters and buffers of a model; for arguments and errors see `matching_state`."""
    model.load_state_dict(matching_state(model, arrays, network))


def matching_state(model: nn.Module, arrays: Mapping[str, np.ndarray], network: str) -> dict[str, torch.Tensor]:
    """Returns a state_dict of saved weights whose names and shapes are the model's.

    Args:
        model: the backbone.
        arrays: weights with the names of this module or of MXNet; other arrays, such as optimizer states, are
            ignored. The keys may have a prefix, see prefix_of.
        network: name of the backbone, which determines the names of MXNet's arrays.

    Raises:
        ValueError: The weights belong to another network. The message has the first names that differ, and the name of
            the network if it is one of `NETWORKS`.
    """
    renamed = with_torch_names(network, arrays)
    state = {name.partition(":")[2]: array for name, array in renamed.items() if name.startswith(("arg:", "aux:"))}
    expected = model.state_dict()
    keys = [key for key in state if not key.endswith(COUNTER)]
    prefix = prefix_of([key for key in expected if not key.endswith(COUNTER)], keys)
    if prefix:
        ignored = [key for key in keys if not key.startswith(prefix)]
        if ignored:
            logging.warning("only the weights %s* are loaded, not %s", prefix, some(ignored))
        state = {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}
    # Old files have no counters, and no batch norm of these networks uses them.
    counters = {key: np.zeros(value.shape, np.int64) for key, value in expected.items() if key.endswith(COUNTER)}
    state = {**counters, **state}
    shapes = {key: array.shape for key, array in state.items()}
    image_size = model.image_size if isinstance(model, Backbone) else 112

    def find_network() -> str | None:
        match = network_with(shapes, image_size)
        return match and match[0]

    require_same_names(list(expected), list(state), find_network)
    for key, value in expected.items():
        if shapes[key] != value.shape:
            match = find_network()
            hint = f": these are weights of {match}, set network={match}" if match not in (None, network) else ""
            raise ValueError(
                f"{key} has the shape {shapes[key]}, expected {tuple(value.shape)} as in this training{hint}"
            )
    return {key: torch.from_numpy(np.array(array)) for key, array in state.items()}


@contextmanager
def borrowed(model: nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[nn.Module]:
    """A context in which ``replace(tensor)`` stands in for each parameter and buffer of the module.

    Afterwards the module has its previous tensors, modes and attributes again, even those that a forward pass has set.
    The module is not copied, because it may hold locks or activations of the last batch, which cannot be copied.
    """
    saved = [(module, dict(vars(module)), {**module._parameters, **module._buffers}) for module in model.modules()]
    replaced: dict[int, torch.Tensor] = {}
    try:
        for module, _, tensors in saved:
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in replaced:
                    value = replace(tensor)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    replaced[id(tensor)] = nn.Parameter(value, requires_grad=False) if is_parameter else value
                setattr(module, name, replaced[id(tensor)])  # RNNs override __setattr__ to update their weights
        yield model
    finally:
        for module, attributes, tensors in saved:
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
            for name, tensor in tensors.items():
                setattr(module, name, tensor)


def published_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a state_dict on the CPU for the published pixel normalization, whatever ``pixel_scale`` is."""
    # Contiguous, because other programs may not expect channels_last.
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if isinstance(model, Backbone) and model.input_gain != 1:
        first = next(f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
        state[first] = state[first] * model.input_gain
    return state


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy on the host; floats of less than 32 bits become float32."""
    is_short = tensor.is_floating_point() and tensor.element_size() < 4
    array: np.ndarray = tensor.detach().to("cpu", torch.float32 if is_short else tensor.dtype, copy=True).numpy()
    return array
