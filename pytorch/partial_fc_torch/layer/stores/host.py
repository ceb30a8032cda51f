"""Centers in host memory or files for a layer on a GPU: the rows of a step are copied there, the next step's ahead.

One thread does both: after a step it writes the updated rows back, then it gathers the rows that have been drawn for
the next step and copies them to the device, while the backbone computes. Only the positives that have not been drawn
are fetched when the labels are known.

Shapes: L classes of this rank, S centers of a step, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..device import to_device
from ..rows import Centers
from .store import CenterStore, StepCenters


class HostStore(CenterStore):
    """Keeps the arrays where another store keeps them, and copies the rows of a step to a device.

    Args:
        store: of arrays on the host.
        device: where the layer computes.
    """

    movable = False
    samples_on_host = True

    def __init__(self, store: CenterStore, device: torch.device):
        super().__init__(store.num_local, device)
        self._store = store
        on_gpu = device.type == "cuda"
        # A new thread is on GPU 0, where it would create a context.
        on_device = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_gpu else {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging", **on_device)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._ahead: Future[StepCenters] | None = None
        self._written: Future[None] | None = None

    def allocate(self, name: str, width: int) -> torch.Tensor:
        """See CenterStore.allocate."""
        return self._store.allocate(name, width)

    def flush(self, name: str) -> None:
        """See CenterStore.flush."""
        self._store.flush(name)

    def sequential_access(self) -> AbstractContextManager[None]:
        """See CenterStore.sequential_access."""
        return self._store.sequential_access()

    def prefetch(self, centers: Centers, index: np.ndarray) -> None:
        """Starts to copy rows to the device, once the last update has been written back; unless this has been done."""
        if self._ahead is None:
            self._store.prefetch(centers, index)
            self._ahead = self._thread.submit(self._fetch, centers, index)

    def load(self, centers: Centers, index: torch.Tensor) -> StepCenters:
        """See CenterStore.load; those that were fetched ahead are not copied again."""
        wanted = index.numpy()
        self._store.prefetch(centers, wanted)
        ahead, self._ahead = self._ahead, None
        if ahead is None or len(ahead.result()) != len(wanted):
            ahead = self._thread.submit(self._fetch, centers, wanted)
        step = ahead.result()
        if self._stream:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._replace(centers, step, wanted)
        return step

    def save(self, centers: Centers, step: StepCenters) -> None:
        """Starts to write updated rows back, after the work that is queued on the device."""
        updated = torch.cuda.current_stream(self.device).record_event() if self._stream else None
        self.synchronize()
        self._written = self._thread.submit(self._write, centers, step, updated)

    def invalidate(self) -> None:
        """See CenterStore.invalidate."""
        self.synchronize()
        if self._ahead is not None:
            self._ahead.result()
        self._ahead = None

    def synchronize(self) -> None:
        """See CenterStore.synchronize."""
        if self._written is not None:
            self._written.result()

    def _fetch(self, centers: Centers, index: np.ndarray) -> StepCenters:
        """Copies rows to the device."""
        with self._copying():
            return StepCenters(_each(centers, lambda rows: self._gather(rows, index)), None, classes=index)

    def _replace(self, centers: Centers, step: StepCenters, wanted: np.ndarray) -> None:
        """Puts the wanted rows that are missing into the places of those that were fetched in vain."""
        assert step.classes is not None
        missing = np.setdiff1d(wanted, step.classes, assume_unique=True)
        unused = np.flatnonzero(~np.isin(step.classes, wanted, assume_unique=True))
        places = to_device(unused, self.device)
        for staged, host in zip(_arrays(step.centers), _arrays(centers)):
            staged[places] = self._gather(host, missing)
        step.classes[unused] = missing
        step.places = torch.from_numpy(np.argsort(step.classes))

    def _gather(self, rows: torch.Tensor, index: np.ndarray) -> torch.Tensor:
        """Copies rows to the device, through pinned memory, in the order of the current stream."""
        pinned = self._stream is not None
        gathered = torch.empty(len(index), rows.shape[1], dtype=rows.dtype, device="cpu", pin_memory=pinned)
        torch.index_select(rows, 0, torch.from_numpy(index), out=gathered)
        return gathered.to(self.device, non_blocking=True)

    def _write(self, centers: Centers, step: StepCenters, updated: torch.cuda.Event | None) -> None:
        assert step.classes is not None
        index = torch.from_numpy(step.classes)
        for staged, host in zip(_arrays(step.centers), _arrays(centers)):
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


def _arrays(centers: Centers) -> list[torch.Tensor]:
    return [centers.weight, *centers.states.values()]


def _each(centers: Centers, call: Callable[[torch.Tensor], torch.Tensor]) -> Centers:
    return Centers(call(centers.weight), {name: call(state) for name, state in centers.states.items()})
