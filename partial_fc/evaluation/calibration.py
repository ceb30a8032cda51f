"""Calibration of scores by logistic regression: log-likelihood ratios of "same class" to "different classes".

The log-likelihood ratio of a score s is a s + b. Newton's method minimizes the cross-entropy

    p mean log(1 + exp(-(a s + b + logit p))) + (1 - p) mean log(1 + exp(a s + b + logit p)),

where the first mean is over the genuine pairs and the second over the impostor pairs. For p = 1/2, it is Cllr log 2.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from partial_fc.utils.options import checked

from .items import ALONE, Workers

STEPS = 100
ROUNDING = 1e-14  # of the loss
TOLERANCE = 1e-18  # improvement of the loss that Newton's method expects of a further step

ScoredPairs = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]  # -> (scores (n,), same (n,) bool) of blocks


class Calibration(NamedTuple):
    """Log-likelihood ratio ``scale * score + offset``."""

    scale: float
    offset: float

    def threshold(self, log_odds: float) -> float:
        """Returns the score whose log-likelihood ratio is ``log_odds``."""
        return (log_odds - self.offset) / self.scale


def calibrate(pairs: ScoredPairs, p_target: float, workers: Workers = ALONE) -> Calibration:
    """Fits a calibration; every rank returns the same.

    Args:
        pairs: called for each step of Newton's method; returns this rank's pairs.
        p_target: p, probability of a genuine pair.
        workers: the ranks.

    Raises:
        ValueError: A kind of pairs is missing, a score is not finite, p is not between 0 and 1, genuine and impostor
            scores do not overlap, or higher scores are not more likely genuine.
    """
    (p_target,) = checked("metrics", p_target=p_target)
    logit = math.log(p_target / (1 - p_target))
    kinds = np.array([p_target, 1 - p_target])
    parameters = np.zeros(2)

    def measure(point: np.ndarray) -> np.ndarray:
        """Returns loss, gradient (2) and Hessian (3) as one array (6,)."""

        def share() -> list[np.ndarray]:
            return [_sums(scores, same, point, logit) for scores, same in pairs()]

        # Summed block by block, so that the number of ranks does not change the sum.
        sums = sum((block for part in workers.together(share) for block in part), np.zeros((2, 7)))
        if not sums[:, 0].all():
            raise ValueError("calibration needs pairs of one class and pairs of different classes")
        return (kinds / sums[:, 0]) @ sums[:, 1:]

    current = measure(parameters)
    for _ in range(STEPS):
        gradient, hessian = current[1:3], current[[3, 4, 4, 5]].reshape(2, 2)
        if np.linalg.cond(hessian) > 1 / np.finfo(float).eps:
            break
        step = np.linalg.solve(hessian, gradient)
        if gradient @ step < TOLERANCE:
            if parameters[0] <= 0 or current[0] < ROUNDING:
                break
            return Calibration(*parameters.tolist())
        while (following := measure(parameters - step))[0] > current[0] + ROUNDING:
            step /= 2
        parameters, current = parameters - step, following
    raise ValueError(
        "the scores cannot be calibrated: genuine and impostor scores do not overlap, or higher scores are not more "
        "likely genuine; use a larger set"
    )


def _sums(scores: np.ndarray, same: np.ndarray, parameters: np.ndarray, logit: float) -> np.ndarray:
    """Returns sums over the genuine and the impostor pairs, (2, 7): number, loss, gradient and Hessian."""
    rows = []
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("calibration needs finite scores")
    for sign, is_genuine in ((-1, True), (1, False)):
        values = scores[np.equal(same, is_genuine)]
        log_odds = sign * (parameters[0] * values + parameters[1] + logit)
        wrong = 1 / (1 + np.exp(-np.clip(log_odds, -700, 700)))  # probability of the other kind
        slope, curvature = sign * wrong, wrong * (1 - wrong)
        terms = [np.ones_like(values), np.logaddexp(0, log_odds), slope * values, slope]
        rows.append([term.sum() for term in [*terms, curvature * values**2, curvature * values, curvature]])
    return np.array(rows)
