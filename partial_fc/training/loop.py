"""The loop over the updates of a training, its state, and the seeds of its random numbers."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from partial_fc.utils.hashing import mix, stream

from .engine import Engine


class BatchEndParam(NamedTuple):
    """The argument of callbacks.

    Attributes:
        loss: mean loss over the last update's global batch, a number or an array of the framework.
        num_epoch: epoch of the last update.
        num_update: number of updates done.
    """

    loss: Any
    num_epoch: int
    num_update: int

    @property
    def loss_value(self) -> float:
        """The loss as a number; waits for the device."""
        return float(self.loss.asscalar() if hasattr(self.loss, "asscalar") else self.loss)  # MXNet has no float()


@dataclass
class LoopState:
    """The state of a training's loop.

    Attributes:
        num_epoch: epoch of the last batch.
        data_state: position in the data after the last update's batch, as JSON; None for data without ``state``. The
            data iterator itself is one batch ahead, because `updates` reads the next batch early.
        waited_for_data: seconds waited for batches so far.
    """

    num_epoch: int = 0
    data_state: dict[str, Any] | None = None
    waited_for_data: float = 0.0


def engine_loop(engine: Any) -> LoopState:
    """Returns the state of an engine's own loop, such as SampleDistributeModule.fit."""
    state: LoopState = engine.loop
    return state


def updates(
    engine: Engine,
    data,
    loop: LoopState,
    max_update: int | None = None,
    batch_end_param: Callable[[Any, int, int], Any] = BatchEndParam,
) -> Iterator[Any]:
    """Trains, and yields after each update; returns when the last update is complete.

    Args:
        engine: engine with parameters and optimizer.
        data: iterator over batches with ``reset()``, such as TrainingData.
        loop: state at which the training continues; it is kept up to date.
        max_update: total number of updates; None trains for one epoch.
        batch_end_param: (loss, num_epoch, num_update) -> value to yield.
    """
    epochs = iterate_epochs(data, first=loop.num_epoch, endless=max_update is not None)
    batch = _next_batch(engine, data, loop, epochs, max_update)
    while batch is not None:
        loop.num_epoch, loss = batch[0], engine.step(batch[1])
        # Reads the next batch while the device still runs this step's backward pass.
        batch = _next_batch(engine, data, loop, epochs, max_update)
        yield batch_end_param(loss, loop.num_epoch, engine.num_update)
    engine.wait_for_update()


def _next_batch(engine: Engine, data, loop: LoopState, epochs: Iterator, max_update: int | None):
    """Returns (epoch, batch), or None after the last one."""
    loop.data_state = data.state() if hasattr(data, "state") else None
    if max_update is not None and engine.num_update >= max_update:
        return None
    start = time.perf_counter()
    batch = next(epochs, None)
    loop.waited_for_data += time.perf_counter() - start
    return batch


def iterate_epochs(train_data, first: int = 0, endless: bool = True) -> Iterator[tuple[int, Any]]:
    """Yields (epoch, batch) and resets the iterator at the end of each epoch.

    Args:
        train_data: iterator over batches with ``reset()``; the first epoch starts at its current position.
        first: number of the first epoch.
        endless: whether to continue after the first epoch.

    Raises:
        ValueError: An epoch has no batch.
    """
    epoch = first
    while True:
        empty = True
        for batch in train_data:
            empty = False
            yield epoch, batch
        if empty:
            raise ValueError(f"the training iterator has no batch in epoch {epoch}, expected at least one per rank")
        train_data.reset()
        if not endless:
            return
        epoch += 1


def seed_step(seed_generators: Callable[[int], None], seed: int, rank: int, num_update: int) -> None:
    """Seeds a framework's generators for the step after ``num_update``, so that a resumed training draws the same.

    A checkpoint has no state of generators, because MXNet cannot save it. Seeding MXNet takes about 1.5 ms.

    Args:
        seed_generators: see Engine.
        seed: seed of the training.
        rank: rank of this process.
        num_update: number of updates done.
    """
    key = mix(stream(seed, rank))
    seed_generators(int((mix(key + num_update) >> 33)[0]))
