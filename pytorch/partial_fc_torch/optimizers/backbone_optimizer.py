"""Wraps an optimizer of PyTorch for checkpoints, in which states are named by the backbone's parameters."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from partial_fc.utils.text import some

from ..weights import to_array

STATE = "state:{}:{}"  # name of a parameter, name of its state
MOMENTUM = "momentum_buffer"  # named "" in checkpoints, like MXNet's momentum


class BackboneOptimizer:
    """Updates a backbone, and saves and restores the states of its optimizer by name.

    Args:
        optimizer: keeps tensors and numbers as the state of each parameter.
        backbone: the module that the optimizer trains.

    Attributes:
        optimizer: as above.
        parameters: the trained parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, backbone: nn.Module):
        self.optimizer = optimizer
        parameters = dict(backbone.named_parameters())
        self._trained = {name: value for name, value in parameters.items() if value.requires_grad}
        self._frozen = parameters.keys() - self._trained.keys()
        self.parameters = list(self._trained.values())

    @property
    def skips_overflows(self) -> bool:
        """Whether `update` accepts ``overflow``; torch.amp.GradScaler reads the same attribute."""
        return getattr(self.optimizer, "_step_supports_amp_scaling", False)

    def update(self, learning_rate: float, overflow: torch.Tensor | None = None) -> None:
        """Updates the parameters with their gradients.

        Args:
            learning_rate: rate of parameters with a factor of 1.
            overflow: float32 scalar on the parameters' device; if it is 1, nothing changes. The host does not read it.
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
        return [name for name, parameter in self._trained.items() if parameter.grad is None]

    def states(self) -> dict[str, np.ndarray]:
        """Returns copies of the states on the host, by name.

        Raises:
            TypeError: A state is neither a tensor nor a number.
        """
        arrays = {}
        for name, state, key in self._entries():
            value = state[key]
            if not isinstance(value, (torch.Tensor, int, float)):
                raise TypeError(
                    f"{type(self.optimizer).__name__} keeps {key} as {type(value).__name__}, but a checkpoint holds "
                    "only tensors and numbers for each parameter: set another optimizer"
                )
            array = to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
            arrays[name] = np.asarray(self._sign(key) * array)
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Sets all states from ``arrays``, which have the names that `states` returns; ignores other arrays.

        Returns:
            The names of the parameters whose states start anew, because they were frozen when ``arrays`` was saved.

        Raises:
            ValueError: ``arrays`` has the states of another optimizer.
        """
        all_saved = {name: array for name, array in arrays.items() if name.startswith("state:")}
        # MXNet saves momentum, all zeros, even for frozen parameters.
        saved = {name: array for name, array in all_saved.items() if _parameter_of(name) not in self._frozen}
        is_new = not self.optimizer.state
        if all_saved and is_new:
            self.create_states()
        thawed = self._trained.keys() - {_parameter_of(name) for name in saved}
        entries = {name: (state, key) for name, state, key in self._entries()}
        kept = {name: entry for name, entry in entries.items() if _parameter_of(name) not in thawed}
        # One set of kinds may be larger: with Adafactor, the kinds of a parameter's states depend on its shape.
        kinds, saved_kinds = _kinds(entries), _kinds(all_saved)
        same_optimizer = bool(entries) <= bool(all_saved) and (kinds <= saved_kinds or kinds >= saved_kinds)
        if kept.keys() != saved.keys() or not same_optimizer:
            raise ValueError(
                f"the backbone's optimizer has {_described(kinds)}, but the checkpoint's had "
                f"{_described(saved_kinds)}: set optimizer, optimizer_options and momentum as they were, or load only "
                "the weights with --pretrained"
            )
        if is_new:
            for name in thawed:
                self.optimizer.state.pop(self._trained[name], None)
        for name, (state, key) in kept.items():
            value, array = state[key], np.asarray(self._sign(key) * saved[name])
            if isinstance(value, torch.Tensor):
                value.copy_(torch.from_numpy(array).reshape(value.shape))
            else:
                state[key] = type(value)(array.item())
        return [name for name in self._trained if name in thawed and entries]

    def _entries(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yields (name in a checkpoint, states of the parameter, key of the state)."""
        for name, parameter in self._trained.items():
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if value is not None:
                    yield STATE.format(name, "" if key == MOMENTUM else key), state, key

    def _sign(self, key: str) -> int:
        return getattr(self.optimizer, "momentum_sign", 1) if key == MOMENTUM else 1

    def create_states(self) -> None:
        """Makes the optimizer create its states, as PyTorch's classes do in their first step; keeps the parameters."""
        saved = [parameter.detach().clone() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.update(0.0)
        self.optimizer.zero_grad()
        with torch.no_grad():
            for parameter, value in zip(self.parameters, saved):
                parameter.copy_(value)


def _parameter_of(name: str) -> str:
    """Returns the name of the parameter that has this state in a checkpoint."""
    return name.removeprefix("state:").rpartition(":")[0]


def _kinds(states: Mapping[str, Any]) -> set[str]:
    """Returns the different states that parameters have, such as momentum."""
    return {name.rpartition(":")[2] or "momentum" for name in states}


def _described(kinds: set[str]) -> str:
    return some(sorted(kinds)) or "no states"
