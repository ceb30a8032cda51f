"""A step between its forward and its backward pass, and the interface of the computations that depend on the device.

Two kinds of indices occur:

* A class has a *column* among the S classes of the step, 0 .. S-1. The K sub-centers of a class, usually one, have the
  *positions* column * K .. column * K + K-1 among the S*K centers of the step.
* ``StepCenters.rows`` maps positions to rows of the arrays that contain the centers.

Shapes: G global batch, P labels of an item, S classes of the step, K sub-centers, T classes of a tile, E embedding.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .gradients import GradientSink
from .margins import Targets
from .products import Features
from .stores import StepCenters


@dataclass
class Labels:
    """The labels of the batch whose centers are on this rank. The values of others are arbitrary."""

    columns: torch.Tensor  # (G, P) int64, -1 where another rank has the class, or there is no label
    held: torch.Tensor  # (G, P) bool, whether this rank has the class
    positions: torch.Tensor  # (G, P) int64, of the sub-center with the largest cosine
    inverse_norms: torch.Tensor  # (G, P), 1 / |W| of this center
    cosines: torch.Tensor  # (G, P) float64


@dataclass
class Step:
    """A step between its forward and its backward pass."""

    sampled: StepCenters  # the centers of the step
    features: Features  # (G, E) of all ranks
    labels: Labels
    targets: Targets  # the margin's results for the labels
    sub_centers: int = 1  # K
    # (S,), added to the logits after the margin, see `negative_weights` in step.py; None for 0
    log_weights: torch.Tensor | None = None
    kept: Any = None  # data that an implementation keeps from the first pass to the second
    loss: float = math.nan  # mean over the global batch
    started: bool = False  # whether the gradient by the features of the first tile has been added
    # The following are set once the statistics of all ranks are known.
    row_term: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (G,) float64, see Objective.term
    # (G, P) gradient of the summed loss with respect to s times the labels' cosines, 0 where ``held`` is False
    d_labels: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # (G,) gradient of the summed loss with respect to the norms of the features; None for 0
    d_norms: torch.Tensor | None = None
    by_parameters: tuple[torch.Tensor, ...] = ()  # gradients of the mean loss by the objective's parameters

    @property
    def num_classes(self) -> int:
        """S."""
        return len(self.sampled) // self.sub_centers

    def label_gradient(self) -> torch.Tensor:
        """Returns the labels' part of the gradient by the unit rows of the features, divided by s: (G, E)."""
        labels, weight = self.labels, self.sampled.centers.weight
        gradient = torch.zeros_like(self.features.unit)
        for number in range(labels.columns.shape[1]):
            positions = labels.positions[:, number]
            centers = weight[positions if self.sampled.rows is None else self.sampled.rows[positions]]
            factors = self.d_labels[:, number] * labels.inverse_norms[:, number]
            gradient.addcmul_(centers, torch.where(labels.held[:, number], factors, 0.0)[:, None])
        return gradient


class Passes(Protocol):
    """An implementation of both passes over the centers of a step, which are divided into tiles."""

    def statistics(self, step: Step) -> torch.Tensor:
        """Returns the sums of the negatives (width, G) float64, see Objective.term. There is at least one center."""
        raise NotImplementedError

    def num_tiles(self, step: Step) -> int:
        """Returns the number of tiles of the backward pass, after `statistics`."""
        raise NotImplementedError

    def start_gradients(self, step: Step) -> None:
        """Prepares a backward pass, in which the calls below are made for each tile in order.

        A second backward pass of a step recomputes the logits.
        """

    def add_feature_gradient(self, step: Step, number: int) -> None:
        """Adds a tile's gradient by the features; changes no center, so it may come before the loss is checked."""

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """Returns the gradient (G, E) by the unit rows of the features, divided by s, after the last tile was added.

        The component along each row, which is not part of the gradient, is not yet removed.
        """
        raise NotImplementedError

    def add_center_gradient(self, step: Step, number: int, sink: GradientSink) -> None:
        """Gives ``sink`` the gradient of the summed loss by the centers of a tile whose feature gradient was added."""
