"""TorchBank: access to the centers of PartialFC for checkpoints.

Shapes: C classes, L classes of this rank, K sub-centers of a class, E embedding.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch

from partial_fc.checkpoint import SavedClasses
from partial_fc.layer.bank_files import consecutive
from partial_fc.layer.sampling import WeightIndexSampler

from .layer.rows import HostCopy, computed_type, is_narrow, numpy_view
from .partial_fc import PartialFC

PART_BYTES = 16 << 20  # size of the parts in which a GPU copies rows to the host


class TorchBank:
    """Implements partial_fc.training.engine.CenterBank for a layer.

    A row of the bank belongs to a class: it joins the K rows of the layer, so that they are saved, mapped and divided
    among the ranks together.
    """

    def __init__(self, layer: PartialFC):
        self._layer, self._sub_centers = layer, layer.sub_centers
        self.in_files = layer.in_files
        self.class_start, self.num_local = layer.class_start, layer.num_local
        self.embedding_size = layer.embedding_size
        self.widths = {field: self._sub_centers * width for field, width in layer.widths.items()}
        self.nbytes = sum(getattr(layer, field).nbytes for field in layer.widths)
        self.sampler: WeightIndexSampler = layer.sampler

    def set_sample_ratio(self, ratio: float) -> None:
        """Sets the fraction of centers to sample from the next step on, see CenterBank.set_sample_ratio."""
        self._layer.sample_rate = ratio

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context for reading all rows in order."""
        return self._layer._store.sequential_access()

    def host_rows(self, field: str, copied: bool) -> Iterable[np.ndarray]:
        """Returns the rows of the centers or of a state on the host, see CenterBank.host_rows."""
        rows = self._rows(field)
        if not copied:
            return _in_parts(rows)
        if rows.device.type == "cpu":
            return [numpy_view(rows.clone())]
        # In pinned parts: a GPU copies faster to pinned memory, and the host joins earlier parts meanwhile.
        return [_joined(_in_parts(rows), rows)]

    def load_classes(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Loads centers and states, see CenterBank.load_classes."""
        saved.require_widths(self.widths, self._sub_centers)
        if class_map is None and saved.num_classes != self._layer.num_classes:
            raise ValueError(
                f"it holds {saved.num_classes} classes, this training has {self._layer.num_classes}: set "
                f"num_classes={saved.num_classes}"
            )
        classes = np.arange(self.class_start, self.class_start + self.num_local)
        saved_classes = classes if class_map is None else class_map[classes]
        for field in saved.widths:
            rows = self._rows(field)

            def current(part: slice, rows: torch.Tensor = rows) -> np.ndarray:
                return rows[part].to("cpu", computed_type(rows), copy=True).numpy()

            blocks, count = saved.blocks(field, saved_classes, current), self._sub_centers
            self._layer.copy_rows(
                field, ((count * row, values.reshape(count * len(values), -1)) for row, values in blocks)
            )

    def set_centers(self, rows: np.ndarray, centers: np.ndarray) -> None:
        """Sets the first sub-center of some classes, see CenterBank.set_centers; the others stay.

        Equal sub-centers would never part, because a step updates one of them only, the first one.
        """
        self._layer.copy_rows("weight", consecutive(self._sub_centers * rows, centers))

    def _rows(self, field: str) -> torch.Tensor:
        """Returns the rows of the centers or of a state by class."""
        return self._layer.rows(field).view(self.num_local, self.widths[field])


def _in_parts(rows: torch.Tensor) -> Iterator[np.ndarray]:
    """Yields consecutive rows on the host; a GPU copies the next part while the caller uses this one."""
    copies = map(HostCopy, rows.split(max(1, PART_BYTES // max(1, rows[:1].nbytes))))
    copy = next(copies)
    for following in copies:
        yield numpy_view(copy.wait())
        copy = following
    yield numpy_view(copy.wait())


def _joined(parts: Iterable[np.ndarray], rows: torch.Tensor) -> np.ndarray:
    """Concatenates the parts of ``rows``."""
    joined, end = np.empty(rows.shape, np.uint16 if is_narrow(rows) else np.float32), 0
    for part in parts:
        start, end = end, end + len(part)
        joined[start:end] = part
    return joined
