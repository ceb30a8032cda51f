"""Centers in host memory or files for a layer on a GPU: each step's rows are copied to the GPU, mostly in advance.

A single staging thread orders all copies: after a step it writes the updated rows back, then it gathers the rows drawn
for the next step and copies them to the device, while the backbone computes. When the labels are known, only the
positives that were not drawn are still missing.

A core moves about 4 GB/s of rows. With a tenth of ten million classes on eight GPUs, a rank moves 4 x 256 MB per
step, which would take one core half a second. A pool of threads therefore moves parts of the rows while other parts are
transferred. PyTorch's own threads do not help, because torchrun sets OMP_NUM_THREADS=1.

Shapes: L classes of this rank, S centers of a step, E embedding.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..rows import Centers, HostCopy, StepCenters, numpy_view, to_device
from .store import CenterStore

PART_BYTES = 8 << 20  # size of the part that a thread moves at a time; its transfer takes 0.2 ms
MAX_THREADS = 16  # more would exceed the memory bandwidth of a GPU's host


class HostStore(CenterStore):
    """Keeps the arrays in another store, and copies the rows of a step to a device."""

    movable = False
    samples_on_host = True

    def __init__(self, store: CenterStore, device: torch.device, cores: int):
        super().__init__(store.num_local, device)
        self._store = store
        on_gpu = device.type == "cuda"
        # A new thread uses GPU 0 by default, and would create a context there.
        on_device = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_gpu else {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging", **on_device)
        self._movers = ThreadPoolExecutor(min(cores, MAX_THREADS), thread_name_prefix="rows", **on_device)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._ahead: Future[StepCenters] | None = None
        self._written: Future[None] | None = None

    def allocate(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See CenterStore.allocate."""
        return self._store.allocate(name, width, dtype)

    def flush(self, name: str) -> None:
        """See CenterStore.flush."""
        self._store.flush(name)

    def sequential_access(self) -> AbstractContextManager[None]:
        """See CenterStore.sequential_access."""
        return self._store.sequential_access()

    def prefetch(self, centers: Centers, drawn: Callable[[], np.ndarray]) -> None:
        """Starts to copy rows to the device, once the last update has been written back, unless already started."""

        def fetch_drawn() -> StepCenters:
            self._store.prefetch(centers, drawn)
            return self._fetch(centers, drawn().copy())

        if self._ahead is None:
            self._ahead = self._thread.submit(fetch_drawn)

    def load(self, centers: Centers, index: torch.Tensor) -> StepCenters:
        """See CenterStore.load; rows that were fetched in advance are not copied again."""
        wanted = index.numpy()
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self.num_local:
            raise IndexError(f"the sample has classes {wanted[0]} to {wanted[-1]} of {self.num_local}")
        ahead, self._ahead = self._ahead, None
        if ahead is None or len(ahead.result()) != len(wanted):
            ahead = self._thread.submit(self._fetch, centers, wanted)
        step = ahead.result()
        if self._stream:  # the layer's kernels must not run before the copies are complete
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            # Nor may the next copies to this memory begin before the kernels have read it.
            for staged in _arrays(step) if step.rows is None else (*_arrays(step), step.rows):
                staged.record_stream(current)
        self._replace(centers, step, wanted)
        return step

    def save(self, centers: Centers, step: StepCenters) -> None:
        """Starts to write updated rows back, once the device has finished the work queued so far."""
        updated = torch.cuda.current_stream(self.device).record_event() if self._stream else None
        self.synchronize()  # raises an error of the previous write
        # The staging thread writes before it fetches the next step's rows, which this update may have changed.
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
            weight = self._gather(centers.weight, index)
            states = {name: self._gather(state, index) for name, state in centers.states.items()}
            return StepCenters(weight, states, local_rows=index)

    def _replace(self, centers: Centers, step: StepCenters, wanted: np.ndarray) -> None:
        """Overwrites prefetched rows that the step does not need with the wanted rows that are missing."""
        assert step.local_rows is not None
        missing, unused, order = replacements(step.local_rows, wanted)
        step.order = torch.from_numpy(order)
        if not len(missing):
            return
        step.local_rows[unused] = missing
        unused_on_device = to_device(unused, self.device)
        for staged, host in zip(_arrays(step), _arrays(centers)):
            staged[unused_on_device] = self._gather(host, missing)

    def _gather(self, rows: torch.Tensor, index: np.ndarray) -> torch.Tensor:
        """Copies rows to the device through pinned memory, on the current stream."""
        shape, pinned = (len(index), rows.shape[1]), self._stream is not None
        gathered = torch.empty(shape, dtype=rows.dtype, device="cpu", pin_memory=pinned)
        staged = torch.empty(shape, dtype=rows.dtype, device=self.device) if pinned else gathered
        parts = list(_parts(gathered))
        taken = [self._movers.submit(_take, rows, index[part], gathered[part]) for part in parts]
        for part, done in zip(parts, taken):
            done.result()
            if pinned:  # transfers this part while threads still gather the following ones
                staged[part].copy_(gathered[part], non_blocking=True)
        return staged

    def _write(self, centers: Centers, step: StepCenters, updated: torch.cuda.Event | None) -> None:
        assert step.local_rows is not None
        put = []
        with self._copying():
            if self._stream and updated:
                self._stream.wait_event(updated)
            for staged, host in zip(_arrays(step), _arrays(centers)):
                for part in _parts(staged):
                    copy = HostCopy(staged[part])
                    put.append(self._movers.submit(_put, host, step.local_rows[part], copy))
        for done in put:
            done.result()

    def _copying(self) -> AbstractContextManager:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()


def _arrays(centers: Centers) -> list[torch.Tensor]:
    return [centers.weight, *centers.states.values()]


def _parts(rows: torch.Tensor) -> Iterator[slice]:
    size = max(1, PART_BYTES // max(1, rows[:1].nbytes))
    return (slice(start, start + size) for start in range(0, len(rows), size))


def _take(rows: torch.Tensor, index: np.ndarray, out: torch.Tensor) -> None:
    # mode="clip" avoids a temporary buffer of NumPy's; `load` has checked the bounds.
    np.take(numpy_view(rows), index, axis=0, out=numpy_view(out), mode="clip")


def _put(rows: torch.Tensor, index: np.ndarray, copy: HostCopy) -> None:
    numpy_view(rows)[index] = numpy_view(copy.wait())


def replacements(fetched: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds which wanted rows have not been fetched, and which fetched rows they can replace.

    Takes linear time, because the GPU waits for the result.

    Args:
        fetched: (S,) int64, sorted, without repetitions.
        wanted: (S,) int64, sorted, without repetitions; most of them are in ``fetched``.

    Returns:
        missing: (n,) elements of ``wanted`` that are not in ``fetched``, sorted.
        unused: (n,) positions in ``fetched`` of elements that are not wanted, sorted.
        positions: (S,) int64, the position of each wanted element after ``fetched[unused] = missing``.
    """
    both = np.concatenate([fetched, wanted])
    both.sort(kind="stable")  # merges two sorted runs in linear time
    single, differs = np.ones(len(both), dtype=bool), both[1:] != both[:-1]
    single[1:] &= differs
    single[:-1] &= differs
    in_one = both[single]  # in exactly one of the arrays
    positions = np.minimum(np.searchsorted(fetched, in_one), len(fetched) - 1)
    is_fetched = fetched[positions] == in_one
    unused, missing = positions[is_fetched], in_one[~is_fetched]
    is_used, is_present = np.ones(len(fetched), dtype=bool), np.ones(len(wanted), dtype=bool)
    is_used[unused] = is_present[np.searchsorted(wanted, missing)] = False
    positions = np.empty(len(wanted), dtype=np.int64)
    positions[is_present], positions[~is_present] = np.flatnonzero(is_used), unused
    return missing, unused, positions
