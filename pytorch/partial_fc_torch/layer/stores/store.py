"""Where centers and their states are kept between the steps: in the memory of the device that computes.

Shapes: L classes of this rank, S centers of a step, N rows, E embedding.
"""

from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from ..rows import Centers


@dataclass
class StepCenters:
    """The centers of a step on the device."""

    centers: Centers  # from which they are taken
    rows: torch.Tensor | None  # (S,) int64, which of them, without repetitions; None for all N
    # (S,) int64, the place among them of the class with each local index of the sample; None if their order is that of
    # the sample
    places: torch.Tensor | None = None
    # (S,) int64 on the host, the local index of each; None if they need not be written back
    classes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.centers.weight if self.rows is None else self.rows)


class CenterStore:
    """Keeps the arrays of a layer, which owns them; this one in the memory of the device that computes.

    Args:
        num_local: L.
        device: where the layer computes.

    Attributes:
        movable: whether ``Module.to`` may move the arrays to another device or type; they are then no longer on
            ``device``.
        samples_on_host: whether the sample of a step has to be on the host; otherwise it is where the labels are.
    """

    movable = True
    samples_on_host = False

    def __init__(self, num_local: int, device: torch.device):
        self.num_local = num_local
        self.device = device

    def allocate(self, name: str, width: int) -> torch.Tensor:
        """Returns zeros (L, width) float32 for the centers or one of their states."""
        return torch.zeros(self.num_local, width, dtype=torch.float32, device=self.device)

    def prefetch(self, centers: Centers, drawn: Future[np.ndarray]) -> None:
        """Announces a sorted index (S,) of the next step, most of which `load` will be called with.

        A thread may still be drawing it, for which nobody should wait who has a GPU to keep busy.
        """

    def load(self, centers: Centers, index: torch.Tensor) -> StepCenters:
        """Returns the centers of a step by a sorted index (S,) of all of them."""
        return StepCenters(centers, None if len(index) == self.num_local else index)

    def save(self, centers: Centers, step: StepCenters) -> None:
        """Writes the updated rows of a step back, if they are copies."""

    def synchronize(self) -> None:
        """Waits until the arrays of the layer hold the last update."""

    def invalidate(self) -> None:
        """Drops copies of rows, because the arrays of the layer are going to change."""

    def flush(self, name: str) -> None:
        """Waits until the numbers of an array are where they are kept."""

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context in which all rows are read from the first to the last."""
        return nullcontext()
