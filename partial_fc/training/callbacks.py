"""Callbacks that run after every update: log lines, and the check for infinite or NaN parameters.

A callback takes a BatchEndParam. It is called on every rank, because it may run collectives.

Shapes: B local batch, R ranks.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from tqdm import tqdm

from .engine import Engine
from .loop import BatchEndParam, LoopState, engine_loop
from .results import LossPoint, some_points
from .run_folder import BRIEF
from .trackers import Trackers

MAX_SAVED_LINES = 30_000  # lines in a checkpoint: 4 MB of its manifest, and 16 MB of memory to read it


class CallBackLogging:
    """Logs loss and speed, and stores them for the report's curves.

    Collectives: all-reduce ``log.waited`` for each line, if ``engine`` is given.

    Args:
        frequent: Number of updates between two lines.
        rank: Rank of this process; only rank 0 writes.
        size: R.
        batch_size: B; the speed counts the items of all ranks.
        trackers: Metric loggers, or None.
        bar: Progress bar, or None.
        engine: Engine, to log its loss scale and how long its loop waits for data; given on all ranks or on none.
        max_update: Length of the training, to log the time left; 0 if not known.
        rate: (number of the update, from 1) -> backbone's learning rate; None if not known.
        loop: State of the training's loop; None for ``engine.fit``'s own.
        margin_options: (number of the update, from 1) -> options of the margin that change during the training.

    Attributes:
        points: A LossPoint for each line.
        seconds: Training time until the last line, without `excluded_time`.
    """

    def __init__(
        self,
        frequent: int,
        rank: int,
        size: int,
        batch_size: int,
        trackers: Trackers | None = None,
        bar: tqdm | None = None,
        engine: Engine | None = None,
        max_update: int = 0,
        rate: Callable[[int], float] | None = None,
        loop: LoopState | None = None,
        margin_options: Callable[[int], Mapping[str, float]] = lambda num_update: {},
    ):
        self.frequent = frequent
        self.rank = rank
        self.global_batch = size * batch_size
        self.trackers = trackers
        self.bar = bar
        self.max_update, self.rate, self.margin_options = max_update, rate, margin_options
        self.points: list[LossPoint] = []
        self.seconds = 0.0
        self._losses: list[float] = []  # since the last line
        self._head_losses: dict[str, tuple[float, int]] = {}  # sum and number of each head's losses since then, by name
        self._resumed = {"seconds": 0.0, "waited": 0.0}  # spent by an earlier process on these updates
        self._engine, self._waited_before, self._waiting_seconds = engine, 0.0, 0.0
        self._loop = LoopState() if engine is None else loop or engine_loop(engine)
        self._since = time.perf_counter()
        self._excluded_since: float | None = None

    def __call__(self, param: BatchEndParam) -> None:
        """Records the loss of an update, and writes a line every ``frequent`` updates."""
        self._losses.append(param.loss_value)
        for name, loss in self._engine.head_losses.items() if self._engine else ():
            total, count = self._head_losses.get(name, (0.0, 0))
            self._head_losses[name] = total + float(loss), count + 1
        if self.bar is not None:
            self.bar.update(1)
        if param.num_update % self.frequent == 0:
            self.write(param.num_epoch, param.num_update)

    def write(self, epoch: int, num_update: int) -> None:
        """Writes a line about the updates since the last line, if there are any."""
        now = time.perf_counter()
        elapsed, self._since = now - self._since, now
        self.seconds += elapsed
        if not self._losses:
            return
        speed = len(self._losses) * self.global_batch / elapsed
        loss, rate = sum(self._losses) / len(self._losses), None if self.rate is None else self.rate(num_update)
        # A head that has been renamed for a resume has losses under both names.
        names = (self._engine and self._engine.head_losses) or self._head_losses
        head_losses = {name: total / count for name, (total, count) in self._head_losses.items() if name in names}
        point = LossPoint(num_update, loss, speed, self._waiting(elapsed), rate, head_losses)
        self._losses, self._head_losses = [], {}
        self.points.append(point)
        if self.rank == 0:
            self._report(epoch, point)

    def _waiting(self, elapsed: float) -> float | None:
        if self._engine is None:
            return None
        waited = self._loop.waited_for_data
        seconds = self._engine.collectives.max("log.waited", waited - self._waited_before)
        self._waited_before = waited
        self._waiting_seconds += seconds
        return seconds / elapsed

    def state(self) -> dict:
        """Returns the state for a checkpoint, as JSON."""
        seconds = (self._excluded_since or time.perf_counter()) - self._since
        return {
            "points": [list(point) for point in some_points(self.points, MAX_SAVED_LINES)],
            "losses": list(self._losses),
            "losses_of_heads": dict(self._head_losses),
            "since_last_line": {"seconds": seconds, "waited": self._loop.waited_for_data - self._waited_before},
            "seconds": self.seconds,
            "waiting_seconds": self._waiting_seconds,
        }

    def restore(self, state: dict) -> None:
        """Restores the state that `state` returned."""
        self.points = [LossPoint(*point) for point in state["points"]]
        self._losses = list(map(float, state["losses"]))
        head_losses = state.get("losses_of_heads", {}).items()
        self._head_losses = {name: (float(total), int(count)) for name, (total, count) in head_losses}
        # Earlier versions' ``seconds`` include the time since the last line.
        resumed = state.get("since_last_line", self._resumed)
        self._resumed = {name: float(resumed[name]) for name in self._resumed}
        self.seconds, self._waiting_seconds = float(state["seconds"]), float(state["waiting_seconds"])

    @property
    def waiting(self) -> float | None:
        """Fraction of the training time in which the slowest rank waited for data; None if not measured."""
        if self._engine is None or not self.seconds:
            return None
        return round(self._waiting_seconds / self.seconds, 4)

    def restart(self) -> None:
        """Starts to measure time and waiting for data, in addition to the restored values."""
        self._since = time.perf_counter() - self._resumed["seconds"]
        self._waited_before = self._loop.waited_for_data - self._resumed["waited"]

    @contextmanager
    def excluded_time(self) -> Iterator[None]:
        """A context, such as verification or saving, that is excluded from training time and speed."""
        self._excluded_since = time.perf_counter()
        yield
        self._since += time.perf_counter() - self._excluded_since
        self._excluded_since = None

    def _report(self, epoch: int, point: LossPoint) -> None:
        """Writes a point to the log, the progress bar and the trackers."""
        update, speed, rate = point.num_update, point.samples_per_second, point.learning_rate
        scale = None if self._engine is None else self._engine.loss_scale
        options = self.margin_options(update)
        # Extrapolates the speed of this point, without verification and saving.
        left = (self.max_update - update) * self.global_batch / speed if self.max_update else None
        parts = (
            f"Speed {speed:.2f} samples/sec",
            f"Loss {point.loss:.4f}",
            *(f"Loss of {name} {loss:.4f}" for name, loss in point.head_losses.items()),
            f"Epoch: {epoch}",
            f"Global Step: {update}",
            None if scale is None else f"Fp16 Grad Scale: {scale.scale:2.0f}",
            None if left is None else f"Required: {left / 3600:1.0f} hours",
            None if point.waiting is None else f"Waiting for data: {100 * point.waiting:.1f} %",
            None if rate is None else f"Learning rate: {rate:.4g}",
            *(f"Margin {name}: {value:.4g}" for name, value in options.items()),
            # More precise than the tutorial's hours above.
            None if left is None else f"Time left: {timedelta(seconds=round(left))}",
        )
        brief = (
            f"step {update:,} of {self.max_update:,}" if self.max_update else f"step {update:,}",
            f"loss {point.loss:.4f}",
            f"{speed:,.0f} samples/s",
            None if point.waiting is None else f"waiting {100 * point.waiting:.1f} %",
            None if left is None else f"{timedelta(seconds=round(left))} left",
        )
        logging.info(
            "   ".join(part for part in parts if part), extra={BRIEF: ", ".join(part for part in brief if part)}
        )
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{point.loss:.4f}", speed=f"{speed:.0f}/s")
        figures = {
            "loss": point.loss,
            "samples_per_second": speed,
            "waiting_for_data": point.waiting,
            "learning_rate": rate,
            "seconds_left": left,
            **{f"margin_{name}": value for name, value in options.items()},
            **{f"loss.{name}": loss for name, loss in point.head_losses.items()},
        }
        if self.trackers is not None:
            self.trackers.log({name: value for name, value in figures.items() if value is not None}, update)


class CallBackFinite:
    """Stops training if a parameter of the backbone is infinite or NaN.

    The loss may be finite nevertheless, because some activations turn NaN into zero. Parameters are the same on all
    ranks, so every rank raises the error.

    Args:
        engine: Engine in training.
        frequent: Number of updates between two checks.

    Raises:
        FloatingPointError: In a call, on every rank; the message names a parameter.
    """

    def __init__(self, engine: Engine, frequent: int):
        self.engine, self.frequent = engine, frequent

    def __call__(self, param: BatchEndParam) -> None:
        """Checks the parameters every ``frequent`` updates."""
        nonfinite = None if param.num_update % self.frequent else self.engine.nonfinite_parameter()
        if nonfinite is not None:
            raise FloatingPointError(
                f"{nonfinite} is not finite after update {param.num_update}: lower lr, set warmup_steps or "
                "max_grad_norm, or check the data"
            )
