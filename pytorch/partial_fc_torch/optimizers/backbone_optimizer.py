"""An optimizer of PyTorch whose states have the names of the backbone's parameters, as checkpoints need them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from partial_fc.utils.text import some

from ..weights import to_array

STATE = "state:{}:{}"  # a state of a parameter
MOMENTUM = "momentum_buffer"  # has an empty name in checkpoints, as MXNet's has


class BackboneOptimizer:
    """Updates a backbone, and saves and restores the states of its optimizer by name.

    Args:
        optimizer: whose state is one of each parameter: tensors and numbers.
        backbone: which has its parameters.

    Attributes:
        optimizer: as above.
        parameters: those that it trains.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, backbone: nn.Module):
        self.optimizer = optimizer
        named = dict(backbone.named_parameters())
        self._named = {name: value for name, value in named.items() if value.requires_grad}
        self._others = {None, *(named.keys() - self._named.keys())}
        self.parameters = list(self._named.values())

    @property
    def skips_overflows(self) -> bool:
        """Whether `update` takes ``overflow``: what torch.amp.GradScaler asks an optimizer, too."""
        return getattr(self.optimizer, "_step_supports_amp_scaling", False)

    def update(self, learning_rate: float, overflow: torch.Tensor | None = None) -> None:
        """Updates the parameters with their gradients.

        Args:
            learning_rate: of parameters with a factor of 1.
            overflow: float32 scalar on their device; if it is 1, nothing changes. The host does not wait for it.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_factor", 1.0)
        if overflow is None:
            self.optimizer.step()
            return
        self.optimizer.found_inf = overflow
        self.optimizer.step()
        del self.optimizer.found_inf

    def gradients(self) -> list[torch.Tensor]:
        """Returns the gradients that exist."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def without_gradients(self) -> list[str]:
        """Returns the names of the parameters that the backward pass has not reached."""
        return [name for name, parameter in self._named.items() if parameter.grad is None]

    def states(self) -> dict[str, np.ndarray]:
        """Returns copies of the states on the host, by name.

        Raises:
            TypeError: a state is neither a tensor nor a number.
        """
        return {name: self._saved(state, key) for name, state, key in self._entries()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Sets all states to those in ``arrays``, by the names that `states` has; other arrays are ignored.

        Returns:
            The names of the parameters without saved states, because they were not trained: theirs start anew.

        Raises:
            ValueError: There are the states of another optimizer.
        """
        every = {name: array for name, array in arrays.items() if _parameter_of(name) is not None}
        # MXNet has momentum, all zeros, for parameters that are not trained.
        saved = {name: array for name, array in every.items() if _parameter_of(name) not in self._others}
        is_new = not self.optimizer.state
        if every and is_new:
            self.create_states()
        thawed = self._named.keys() - {_parameter_of(name) for name in saved}
        own = {name: (state, key) for name, state, key in self._entries()}
        kept = {name: place for name, place in own.items() if _parameter_of(name) not in thawed}
        kinds, of_saved = _kinds(own), _kinds(every)  # those of a parameter may depend on its shape
        if kept.keys() != saved.keys() or bool(own) > bool(every) or not (kinds <= of_saved or kinds >= of_saved):
            raise ValueError(
                f"it holds {_places(every)} of the backbone's optimizer, this training's has {_places(own)}: set "
                "optimizer, optimizer_options and momentum as they were, or take the weights alone with --pretrained"
            )
        if is_new:
            for name in thawed:
                self.optimizer.state.pop(self._named[name], None)
        for name, (state, key) in kept.items():
            value, array = state[key], np.asarray(self._sign(key) * saved[name])
            if isinstance(value, torch.Tensor):
                value.copy_(torch.from_numpy(array).reshape(value.shape))
            else:
                state[key] = type(value)(array.item())
        return [name for name in self._named if name in thawed and own]

    def _entries(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yields (name in a checkpoint, states of the parameter, key of the state)."""
        for name, parameter in self._named.items():
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if value is not None:
                    yield STATE.format(name, "" if key == MOMENTUM else key), state, key

    def _saved(self, state: dict[str, Any], key: str) -> np.ndarray:
        value = state[key]
        if not isinstance(value, (torch.Tensor, int, float)):
            raise TypeError(
                f"{type(self.optimizer).__name__} keeps {key} as {type(value).__name__}, but a checkpoint holds "
                "tensors and numbers of each parameter: set another optimizer"
            )
        array = to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        return np.asarray(self._sign(key) * array)

    def _sign(self, key: str) -> int:
        return getattr(self.optimizer, "momentum_sign", 1) if key == MOMENTUM else 1

    def create_states(self) -> None:
        """Lets the optimizer create its states, which PyTorch's do in their first step; the parameters stay."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.update(0.0)
        self.optimizer.zero_grad()
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before):
                parameter.copy_(value)


def _parameter_of(name: str) -> str | None:
    """The parameter of a state by its name in a checkpoint; None for another array."""
    kind, _, rest = name.partition(":")
    return rest.rpartition(":")[0] if kind == "state" else None


def _kinds(states: Mapping[str, Any]) -> set[str]:
    """The names of the states of a parameter."""
    return {name.rpartition(":")[2] or "momentum" for name in states}


def _places(states: Mapping[str, Any]) -> str:
    """The kinds of these states in words."""
    return some(sorted(_kinds(states))) or "no states"
