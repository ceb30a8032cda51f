"""The interface of a tracker."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class TrackedRun(NamedTuple):
    """What a tracker is given of a training."""

    folder: str  # output folder of the training
    run_id: str  # the same for all processes that continue one training, otherwise unique
    settings: Mapping[str, Any]  # of the training, all of them
    first_update: int = 0  # that this process logs: what an earlier one has logged from there on comes again
    changes: Mapping[str, str] = {}  # noqa: RUF012  what a resumed training has changed, by name and ``first_update``


class Tracker(Protocol):
    """Receives the figures of a training on rank 0, in a thread of its own; an error of `begin` ends the tracker alone.

    Its class, or the function that makes it, takes the options that it has as keyword arguments. An attribute
    ``threads_of`` may name packages that write in threads with classes of theirs, whose errors end the tracker, too.
    """

    def begin(self, run: TrackedRun) -> None:
        """Starts a run, or continues that of ``run.run_id``."""

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes the values of curves, by name, after an update; an error is a warning, and the next values come.

        Names have letters, digits and ``_ - . /`` alone.
        """

    def close(self) -> None:
        """Writes what is left, after the results of the training are complete or when it ends early."""


class ScalarWriter(Protocol):
    """A writer of TensorBoard events: mxboard's SummaryWriter, or PyTorch's."""

    def add_scalar(self, tag: str, value: float, global_step: int, /) -> None:
        """Writes one value of a curve."""

    def close(self) -> None:
        """Flushes and closes the files."""
