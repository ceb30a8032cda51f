"""Storage of centers and their states between steps: by default the memory of the device that computes.

Shapes: L classes of this rank, S centers of a step, N rows, E embedding.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..rows import Centers, StepCenters


class CenterStore:
    """Allocates the arrays of a layer in the memory of the device that computes; a base class for other storage.

    Args:
        num_local: L.
        device: where the layer computes.

    Attributes:
        movable: whether ``Module.to`` may move the arrays to another device or type; ``device`` is then outdated.
        samples_on_host: whether the sample of a step must be on the host; otherwise it is on the labels' device.
    """

    movable = True
    samples_on_host = False

    def __init__(self, num_local: int, device: torch.device):
        self.num_local = num_local
        self.device = device

    def allocate(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns zeros (L, width) for the centers or one of their states.

        A store without the argument ``dtype`` serves layers with ``center_dtype=torch.float32`` alone.
        """
        return torch.zeros(self.num_local, width, dtype=dtype, device=self.device)

    def prefetch(self, centers: Centers, drawn: Callable[[], np.ndarray]) -> None:
        """Announces the sorted local rows (S,) of the next step; most of them will be passed to `load`.

        ``drawn`` returns them. A thread may still be drawing them, and waiting would leave a GPU idle.
        """

    def load(self, centers: Centers, index: torch.Tensor) -> StepCenters:
        """Returns the centers of a step, given their sorted local indices (S,)."""
        rows = None if len(index) == self.num_local else index
        return StepCenters(centers.weight, centers.states, rows)

    def save(self, centers: Centers, step: StepCenters) -> None:
        """Writes the updated rows of a step back, if they are copies."""

    def synchronize(self) -> None:
        """Waits until the arrays of the layer contain the last update."""

    def invalidate(self) -> None:
        """Drops copies of rows, because the arrays of the layer are about to change."""

    def flush(self, name: str) -> None:
        """Waits until changes of an array have reached its storage."""

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context for reading all rows in order."""
        return nullcontext()
