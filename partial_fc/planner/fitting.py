"""Fits the constants of a machine (rates, delays) to measured step times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from . import plan
from .case import Case
from .machine import Machine
from .times import seconds_of, step_times

_STARTS = 8  # starting points: the sum of squares has several minima, as one part of a step can hide another
_ITERATIONS = 60
_DIFFERENCE = 1e-4  # step of the numerical derivative, of a logarithm
_DAMPING, _MAX_DAMPING = 1e-3, 1e6
_MAX_STEP = 1.0  # of a logarithm in one iteration
_REGULARIZATION = 1e-15  # keeps a constant that nothing depends on where it is


class Measured(NamedTuple):
    """A measured step.

    Attributes:
        case: what it computed and moved.
        of_host: ranks of a host.
        seconds: time of the step.
        sharing: ranks that shared a core.
        gigabits, latency: of the network, where it is not the machine's own: Gbit/s and seconds.
    """

    case: Case
    of_host: int
    seconds: float
    sharing: float = 1.0
    gigabits: float | None = None
    latency: float | None = None


def predict(machine: Machine, step: Measured) -> float:
    """Predicts the seconds of a step; its measured time is not used."""
    machine = machine.shared(step.sharing)
    if step.gigabits is not None:
        machine = machine.on(step.gigabits, step.latency)
    return seconds_of(step_times(plan(step.case), machine, step.of_host))


def fit(machine: Machine, names: Sequence[str], measured: Sequence[Measured]) -> Machine:
    """Minimizes the sum of squared log(predicted / measured) over constants of a machine.

    Levenberg-Marquardt in the logarithms of the constants, so that none becomes negative.

    Args:
        machine: the starting point; constants that are not named are fixed.
        names: the constants to fit, at most as many as measured steps.
        measured: the steps.

    Raises:
        ValueError: there are fewer measured steps than constants.
    """
    if len(measured) < len(names):
        raise ValueError(f"{len(measured)} measured steps cannot determine {len(names)} constants: measure more steps")
    logs = np.log([getattr(machine, name) for name in names])

    def errors(point: np.ndarray) -> np.ndarray:
        candidate = machine._replace(**dict(zip(names, np.exp(point).tolist())))
        return np.log([predict(candidate, step) / step.seconds for step in measured])

    rng = np.random.default_rng(0)
    starts = [logs, *(logs + rng.standard_normal((_STARTS - 1, len(logs))))]
    best = min((_minimize(errors, start) for start in starts), key=lambda point: float(np.sum(errors(point) ** 2)))
    return machine._replace(**dict(zip(names, np.exp(best).tolist())))


def _minimize(errors: Callable[[np.ndarray], np.ndarray], point: np.ndarray) -> np.ndarray:
    """A local minimum of the sum of squared errors near `point`."""
    residual, damping = errors(point), _DAMPING
    for _ in range(_ITERATIONS):
        columns = [(errors(point + _DIFFERENCE * row) - residual) / _DIFFERENCE for row in np.eye(len(point))]
        jacobian = np.stack(columns, axis=1)
        normal = jacobian.T @ jacobian
        normal += np.diag(damping * normal.diagonal() + _REGULARIZATION)
        candidate = point - np.clip(np.linalg.solve(normal, jacobian.T @ residual), -_MAX_STEP, _MAX_STEP)
        candidate_residual = errors(candidate)
        if candidate_residual @ candidate_residual < residual @ residual:
            point, residual, damping = candidate, candidate_residual, damping / 3
        else:
            damping *= 4
        if damping > _MAX_DAMPING:
            break
    return point
