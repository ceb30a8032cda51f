"""Centers in host memory or files for a layer on a GPU: the rows of a step are copied there, the next step's ahead.

One thread does both: after a step it writes the updated rows back, then it gathers the rows that have been drawn for
the next step and copies them to the device, while the backbone computes. Only the positives that have not been drawn
are fetched when the labels are known.

Shapes: L classes of this rank, S centers of a step, E embedding.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from .device import to_device


class StagedRows(NamedTuple):
    """The rows of a step on the device.

    Attributes:
        classes: (S,) int64, their local indices, not sorted; on the host.
        weight, weight_mom: (S, E).
    """

    classes: np.ndarray
    weight: torch.Tensor
    weight_mom: torch.Tensor


class Staging:
    """Copies rows between the host and a device.

    Args:
        weight, weight_mom: (L, E) on the host.
        device: of the step.
    """

    def __init__(self, weight: torch.Tensor, weight_mom: torch.Tensor, device: torch.device):
        self.device = device
        self._host = weight, weight_mom
        on_gpu = device.type == "cuda"
        # A new thread is on GPU 0, where it would create a context.
        on_device = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_gpu else {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging", **on_device)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._ahead: Future[StagedRows] | None = None
        self._written: Future[None] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether rows have been fetched ahead."""
        return self._ahead is not None

    def fetch_ahead(self, index: np.ndarray) -> None:
        """Starts to copy the rows of an index (S,), which becomes part of the result of `load`, to the device."""
        self._ahead = self._thread.submit(self._fetch, index)

    def load(self, index: np.ndarray) -> StagedRows:
        """Returns the rows of an index (S,) without repetitions; those that were fetched ahead are not copied again."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or len(ahead.result().classes) != len(index):
            ahead = self._thread.submit(self._fetch, index)
        rows = ahead.result()
        if self._stream:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        replaced = np.flatnonzero(~np.isin(rows.classes, index, assume_unique=True))
        missing = np.setdiff1d(index, rows.classes, assume_unique=True)
        places = to_device(replaced, self.device)
        for staged, host in zip(rows[1:], self._host):
            staged[places] = self._gather(host, missing)
        rows.classes[replaced] = missing
        return rows

    def store(self, rows: StagedRows) -> None:
        """Starts to write updated rows back, after the work that is queued on the device."""
        updated = torch.cuda.current_stream(self.device).record_event() if self._stream else None
        self.synchronize()
        self._written = self._thread.submit(self._write, rows, updated)

    def invalidate(self) -> None:
        """Drops the rows that were fetched ahead: those on the host are going to change."""
        self.synchronize()
        if self._ahead is not None:
            self._ahead.result()
        self._ahead = None

    def synchronize(self) -> None:
        """Waits until the host has all updates."""
        if self._written is not None:
            self._written.result()

    def _fetch(self, index: np.ndarray) -> StagedRows:
        with self._copying():
            return StagedRows(index, *(self._gather(rows, index) for rows in self._host))

    def _gather(self, rows: torch.Tensor, index: np.ndarray) -> torch.Tensor:
        """Copies rows to the device, through pinned memory, in the order of the current stream."""
        pinned = self._stream is not None
        gathered = torch.empty(len(index), rows.shape[1], dtype=rows.dtype, device="cpu", pin_memory=pinned)
        torch.index_select(rows, 0, torch.from_numpy(index), out=gathered)
        return gathered.to(self.device, non_blocking=True)

    def _write(self, rows: StagedRows, updated: torch.cuda.Event | None) -> None:
        index = torch.from_numpy(rows.classes)
        for staged, host in zip(rows[1:], self._host):
            host.index_copy_(0, index, self._to_host(staged, updated))

    def _to_host(self, rows: torch.Tensor, updated: torch.cuda.Event | None) -> torch.Tensor:
        if updated is None or self._stream is None:
            return rows
        with self._copying():
            self._stream.wait_event(updated)
            on_host = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
            on_host.copy_(rows, non_blocking=True)
            self._stream.synchronize()
        return on_host

    def _copying(self) -> AbstractContextManager:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()
