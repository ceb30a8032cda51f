"""Rows of centers and features: operations on them, and copies between the host and the device of the layer.

Rows may be stored in bfloat16. `gather_rows` returns them in float32, in which the layer computes, and `Centers.write`
rounds them back; nothing else reads or writes 16-bit rows of a step.

Shapes: N rows, T rows, S centers of a step, E embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.autograd.graph import increment_version

if TYPE_CHECKING:
    from .rounding import Rounding

# Added to squared norms, so that a zero row has a finite inverse norm; the same as in MXNet's trainer.
NORM_EPSILON = 1e-10

RowIndex: TypeAlias = slice | torch.Tensor  # consecutive rows, or (T,) int64 without repetitions


@dataclass
class Centers:
    """Centers with the states of their optimizer."""

    weight: torch.Tensor  # (N, E)
    states: dict[str, torch.Tensor]  # name -> (N, width), see RowOptimizer.states
    # Of 16-bit rows in an update; None rounds to nearest
    rounding: Rounding | None = field(default=None, kw_only=True)

    def write(self, rows: torch.Tensor, weight: torch.Tensor, states: dict[str, torch.Tensor]) -> None:
        """Writes rows by index, without repetitions, in place.

        Args:
            rows: (T,) int64.
            weight, states: (T, width) each, in the type of `gather_rows`.
        """
        arrays = [(self.weight, weight), *((self.states[name], values) for name, values in states.items())]
        for number, (array, values) in enumerate(arrays):
            if self.rounding and array.dtype != values.dtype:
                values = self.rounding(values, rows, number)
            scatter_rows(array, rows, values.to(array.dtype))


@dataclass
class StepCenters(Centers):
    """Arrays on the device that contain the centers of a step."""

    rows: torch.Tensor | None = None  # (S,) int64, the rows of these centers, without repetitions; None for all N
    # (S,) int64, positions among these rows of the sample's sorted centers; None if the rows are sorted
    order: torch.Tensor | None = None
    # (S,) int64 on the host, their rows in the arrays of the layer; None if they need not be written back
    local_rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.rows is None and is_narrow(self.weight):  # tiles of them are copies, like tiles of sampled rows
            self.rows = torch.arange(len(self.weight), device=self.weight.device)

    def __len__(self) -> int:
        return len(self.weight if self.rows is None else self.rows)


@dataclass
class TileGradient:
    """The gradient of the mean loss by the centers of a tile."""

    rows: RowIndex  # index of these centers
    weight: torch.Tensor  # (T, E), the centers; a view if ``rows`` is a slice, otherwise a copy
    inverse_norm: torch.Tensor  # (T,) 1 / |W|
    # (T, E), the gradient divided by ``scale``, plus a component along each center that is still to be removed: the
    # loss depends only on the direction of a center
    raw: torch.Tensor
    scale: float  # 1 / G

    def values(self) -> torch.Tensor:
        """Returns the gradient (T, E); overwrites ``raw``, so it can be called only once."""
        remove_component(self.raw, self.weight, self.inverse_norm)
        return self.raw.mul_(self.scale)


def gather_rows(array: torch.Tensor, rows: RowIndex, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns rows of an array: a view if the index is a slice, otherwise a copy; 16-bit rows as a float32 copy.

    A copy of rows by index is in ``out``, if it is given.
    """
    if isinstance(rows, slice):
        return array[rows].to(computed_type(array))
    if not is_narrow(array):
        return torch.index_select(array, 0, rows, out=out)
    narrow = array.index_select(0, rows)
    return narrow.float() if out is None else out.copy_(narrow)


def is_narrow(rows: torch.Tensor) -> bool:
    """Returns whether rows are stored in 16 bits, in which the layer does not compute."""
    return rows.dtype == torch.bfloat16


def computed_type(rows: torch.Tensor) -> torch.dtype:
    """Returns the type in which the layer computes with rows, see `gather_rows`."""
    return torch.float32 if is_narrow(rows) else rows.dtype


def numpy_view(rows: torch.Tensor) -> np.ndarray:
    """Returns rows on the host as an array that shares their memory; bfloat16, which NumPy lacks, as its bits."""
    return (rows.view(torch.uint16) if is_narrow(rows) else rows).numpy()


def scatter_rows(array: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Writes rows by index, without repetitions, in place."""
    if array.device.type != "cpu":
        array.index_copy_(0, rows, values)
        return
    numpy_view(array)[rows.numpy()] = numpy_view(values)  # twice as fast as index_copy_
    increment_version(array)


def inverse_norms(rows: torch.Tensor) -> torch.Tensor:
    """Returns 1 / Euclidean norm of every row (T, E): (T,)."""
    return torch.linalg.vector_norm(rows, dim=1).square_().add_(NORM_EPSILON).rsqrt_()


def dot_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the dot product of each row of left (T, E) with the same row of right (T, E): (T,)."""
    return torch.linalg.vecdot(left, right)


def remove_component(gradient: torch.Tensor, rows: torch.Tensor, inverse_norm: torch.Tensor) -> None:
    """gradient -= (gradient . w) w for each row (T, E), in place, with w = inverse_norm * row."""
    along = dot_rows(gradient, rows) * inverse_norm.square()
    gradient.sub_(rows * along[:, None])


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies to a GPU without waiting for the work queued there; on the CPU the result shares the memory."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # a copy from pageable memory would wait
    return tensor.to(device, non_blocking=device.type == "cuda")  # a copy to the CPU must be complete on return


class HostCopy:
    """An asynchronous copy of a tensor to the host: a GPU makes it after the work queued there."""

    def __init__(self, tensor: torch.Tensor):
        on_gpu = tensor.device.type == "cuda"
        self._copy = tensor.to("cpu", non_blocking=on_gpu)  # PyTorch allocates pinned memory
        self._copied = torch.cuda.current_stream(tensor.device).record_event() if on_gpu else None

    def wait(self) -> torch.Tensor:
        """Waits for the copy and returns it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy
