"""The interface of a tracker."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class TrackedRun(NamedTuple):
    """The training that a tracker follows."""

    folder: str  # output folder of the training
    run_id: str  # unique, but the same for all processes that continue one training
    settings: Mapping[str, Any]  # all settings of the training
    first_update: int = 0  # first update that this process logs; an earlier process may have logged it already
    changes: Mapping[str, str] = {}  # noqa: RUF012  "NAME from update N" -> values that a resumed training changed


class Tracker(Protocol):
    """Receives the figures of a training on rank 0, in a thread of its own. An error in `begin` ends only the tracker.

    A tracker's class, or the function that makes it, takes its options as keyword arguments. If its library writes in
    background threads, the optional attribute ``threads_of`` names the packages of their classes, so that an error in
    such a thread ends the tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """Starts a run, or continues the run with the identifier ``run.run_id``."""

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes the values of curves by name, after an update; an error causes a warning, and logging continues.

        Names consist of letters, digits and ``_ - . /``.
        """

    def close(self) -> None:
        """Writes what is left, after the results of the training are complete or when it ends early."""


class ScalarWriter(Protocol):
    """A writer of TensorBoard events: mxboard's SummaryWriter, or PyTorch's."""

    def add_scalar(self, tag: str, value: float, global_step: int, /) -> None:
        """Writes one value of a curve."""

    def close(self) -> None:
        """Flushes and closes the files."""
