"""The interface of both passes over the centers of a step, as step.py calls them.

Shapes: G global batch, S centers of the step, E embedding.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from .margins import Targets
from .products import Features
from .rows import TileGradient
from .stores import StepCenters

Result = TypeVar("Result")


@dataclass
class Step:
    """A step between its forward and its backward pass."""

    sampled: StepCenters  # the centers of the step
    features: Features  # (G, E) of all ranks
    # (G,) int64, column of each row's target among the centers of the step; -1 if this rank does not have it
    columns: torch.Tensor
    held: torch.Tensor  # (G,) bool, whether this rank has the row's target
    targets: Targets  # the batch's targets
    target_logits: torch.Tensor  # (G,) float64, -inf where ``held`` is False
    # (S,), added to the logits after the margin, see `negative_weights`; None for 0
    log_weights: torch.Tensor | None = None
    kept: Any = None  # data that an implementation keeps from the first pass to the second
    loss: float = math.nan  # mean over the global batch
    # (G,) float64, over the logits of all ranks
    log_sum_exp: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @functools.cached_property
    def d_target_logits(self) -> torch.Tensor:
        """(G,) float64, p - 1: gradient of each row's loss by its target logit."""
        return torch.expm1(self.target_logits - self.log_sum_exp)

    @functools.cached_property
    def d_targets(self) -> torch.Tensor:
        """(G,) gradient of the summed loss by s times the targets' cosines, 0 where ``held`` is False."""
        by_cosine = torch.where(self.held, self.targets.by_cosine, 0.0)
        return (by_cosine * self.d_target_logits).to(self.features.unit.dtype)


class Passes(Protocol):
    """An implementation of both passes."""

    def statistics(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (row maxima of the logits, sums of exp(logit - maximum)), both (parts, G) float64.

        An implementation divides the centers, of which there is at least one, into any number of parts.
        """

    def begin_gradients(self, step: Step) -> None:
        """Queues the first part of `gradients`, which changes no center, to keep the device busy during the loss check.

        Args:
            step: after `statistics`, with its ``log_sum_exp``; or a step without centers.
        """

    def gradients(
        self, step: Step, receive: Callable[[TileGradient], None], complete: Callable[[torch.Tensor], Result]
    ) -> Result:
        """Computes the gradients of the summed loss; a second call with the same step recomputes the logits.

        The last update overlaps with the reduce-scatter of the feature gradient, which takes less time. Overlapping it
        with more updates would require the gradients of all tiles in memory, or a second pass over the logits.

        Args:
            step: after `statistics`, with its ``log_sum_exp``; or a step without centers.
            receive: see MarginSoftmax.backward.
            complete: is called once, before the last update if possible, with the gradient (G, E) by the unit rows of
                the features, divided by s. The component along each row, which is not part of the gradient, is not yet
                removed. ``complete`` may overwrite its argument.

        Returns:
            The return value of ``complete``.
        """
        raise NotImplementedError
