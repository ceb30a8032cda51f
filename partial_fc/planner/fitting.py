"""Finds the figures of a machine that explain measured step times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from . import plan
from .case import Case
from .machine import Machine
from .times import seconds_of, step_times

_STARTS = 8  # of the search: what hides behind what makes valleys with walls
_ROUNDS = 60
_NUDGE = 1e-4  # of a logarithm, to see where a figure leads to
_DAMPING, _MOST_DAMPING = 1e-3, 1e6
_FARTHEST = 1.0  # of a logarithm in one round
_LEAST = 1e-15  # so that a figure on which nothing depends stays where it is


class Measured(NamedTuple):
    """A step that was measured.

    Attributes:
        case: what it computed and moved.
        of_host: ranks of a host.
        seconds: it took.
        sharing: ranks that took turns on a core.
        gigabits, latency: of the network, where it is not the machine's own.
    """

    case: Case
    of_host: int
    seconds: float
    sharing: float = 1.0
    gigabits: float | None = None
    latency: float | None = None


def predict(machine: Machine, one: Measured) -> float:
    """Seconds of such a step."""
    machine = machine.shared(one.sharing)
    if one.gigabits is not None:
        machine = machine.on(one.gigabits, one.latency)
    return seconds_of(step_times(plan(one.case), machine, one.of_host))


def fit(machine: Machine, names: Sequence[str], measured: Sequence[Measured]) -> Machine:
    """The machine with those of its figures that make the sum of squared logarithms of predicted / measured least.

    Steps of Gauss and Newton in the logarithms of the figures, so that none becomes negative, damped as Marquardt did.

    Args:
        machine: where to begin; what is not named stays.
        names: of the figures to find, not more than there are measured steps.
        measured: steps.

    Raises:
        ValueError: there are too few measured steps.
    """
    if len(measured) < len(names):
        raise ValueError(f"{len(measured)} measured steps cannot tell {len(names)} figures: measure more, or fit fewer")
    logs = np.log([getattr(machine, name) for name in names])

    def errors(at: np.ndarray) -> np.ndarray:
        tried = machine._replace(**dict(zip(names, np.exp(at).tolist())))
        return np.log([predict(tried, one) / one.seconds for one in measured])

    rng = np.random.default_rng(0)
    starts = [logs, *(logs + rng.standard_normal((_STARTS - 1, len(logs))))]
    best = min((_descend(errors, start) for start in starts), key=lambda at: float(np.sum(errors(at) ** 2)))
    return machine._replace(**dict(zip(names, np.exp(best).tolist())))


def _descend(errors: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """The lowest point near ``at`` of the sum of squared errors."""
    left, damping = errors(at), _DAMPING
    for _ in range(_ROUNDS):
        slopes = np.stack([(errors(at + _NUDGE * row) - left) / _NUDGE for row in np.eye(len(at))], axis=1)
        square = slopes.T @ slopes
        square += np.diag(damping * square.diagonal() + _LEAST)
        there = at - np.clip(np.linalg.solve(square, slopes.T @ left), -_FARTHEST, _FARTHEST)
        then = errors(there)
        if then @ then < left @ left:
            at, left, damping = there, then, damping / 3
        else:
            damping *= 4
        if damping > _MOST_DAMPING:
            break
    return at
