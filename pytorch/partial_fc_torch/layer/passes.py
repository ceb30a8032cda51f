"""Both passes over the centers of a step, as the page of the layer calls them.

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
    # (G,) int64, column of each row's target among the centers of the step, -1 if it is not among them
    columns: torch.Tensor
    held: torch.Tensor  # (G,) whether it is among them
    targets: Targets  # of the batch
    target_logits: torch.Tensor  # (G,) float64, -inf where it is not held
    # (S,), what the logits get after the margin, see `negative_weights`; None for 0
    log_weights: torch.Tensor | None = None
    kept: Any = None  # what the passes keep from the first to the second
    loss: float = math.nan  # mean over the global batch
    # (G,) float64 over the logits of all ranks
    log_sum_exp: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @functools.cached_property
    def d_target_logits(self) -> torch.Tensor:
        """(G,) float64, p - 1: gradient of each row's loss by its target logit."""
        return torch.expm1(self.target_logits - self.log_sum_exp)

    @functools.cached_property
    def d_targets(self) -> torch.Tensor:
        """(G,) gradient of the summed loss by s times the targets' cosines, 0 where they are not held."""
        by_cosine = torch.where(self.held, self.targets.by_cosine, 0.0)
        return (by_cosine * self.d_target_logits).to(self.features.unit.dtype)


class Passes(Protocol):
    """An implementation of both passes."""

    def statistics(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (row maxima of the logits, sums of exp(logit - maximum)), both (parts, G) float64.

        Each of the parts of the centers, at least one, has its own. The step has at least one center.
        """

    def begin_gradients(self, step: Step) -> None:
        """Queues a part of `gradients` that changes no center, for the time in which the host checks the loss.

        Args:
            step: after `statistics`, with its ``log_sum_exp``; or without centers.
        """

    def gradients(
        self, step: Step, receive: Callable[[TileGradient], None], complete: Callable[[torch.Tensor], Result]
    ) -> Result:
        """Computes the gradients of the summed loss; a second call with the same step computes the logits again.

        The last update runs beside the reduce-scatter of the feature gradient, which takes less. Beside more of them
        it would need the gradients of all tiles in memory, (S, E) written and read once more, or a second pass over
        the logits.

        Args:
            step: after `statistics`, with its ``log_sum_exp``; or without centers.
            receive: as of MarginSoftmax.backward.
            complete: is called once, before the last update where this costs nothing, with the gradient (G, E) by the
                unit rows of the features, divided by s, but for a component along each of them; may overwrite it.

        Returns:
            What ``complete`` returns.
        """
        raise NotImplementedError
