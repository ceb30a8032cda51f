"""TorchBank: the centers of PartialFC as checkpoints need them.

Shapes: C classes, L classes of this rank, E embedding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from partial_fc.checkpoint import SavedClasses
from partial_fc.layer.sampling import WeightIndexSampler

from .partial_fc import PartialFC

ROWS = 1024  # rows that are read from a file at a time


class TorchBank:
    """The centers of a layer as partial_fc.training.engine.CenterBank.

    Args:
        layer: PartialFC.
    """

    in_files = False

    def __init__(self, layer: PartialFC):
        self._layer = layer
        self.class_start, self.num_local = layer.class_start, layer.num_local
        self.embedding_size = layer.embedding_size
        self.sampler: WeightIndexSampler = layer.sampler

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context in which all rows are read from the first to the last."""
        return nullcontext()

    def host_rows(self, field: str, copied: bool) -> list[np.ndarray]:
        """Returns the rows of "weight" or "weight_mom" on the host, see CenterBank.host_rows."""
        rows: torch.Tensor = getattr(self._layer, field).detach()
        return [rows.to("cpu", copy=copied).numpy()]

    def take(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Loads centers and momentum, see CenterBank.take."""
        saved.require_embedding_size(self.embedding_size)
        for row in range(0, self.num_local, ROWS):
            stop = min(row + ROWS, self.num_local)
            classes = np.arange(self.class_start + row, self.class_start + stop)
            saved_classes = classes if class_map is None else class_map[classes]
            known = np.flatnonzero(saved_classes >= 0)
            for field in ("weight", "weight_mom"):
                values = torch.from_numpy(saved.rows(field, saved_classes[known]))
                rows = getattr(self._layer, field).detach()[row:stop]
                rows[torch.from_numpy(known).to(rows.device)] = values.to(rows)
