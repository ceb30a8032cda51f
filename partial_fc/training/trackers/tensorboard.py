"""TensorBoard: events in the folder ``tensorboard`` of the training."""

import os
import secrets
from collections.abc import Callable, Mapping

from partial_fc.utils.shared_folders import make_folder

from .tracker import ScalarWriter, TrackedRun


def drawn_ending() -> str:
    """Returns how the name of a file of events ends, so that nobody can put a link in its place beforehand."""
    return f".{secrets.token_hex(4)}"


class TensorBoard:
    """Writes events by mxboard or torch.utils.tensorboard; ``open_writer`` is that of Framework."""

    threads_of = ("mxboard", "tensorboard")

    def __init__(self, open_writer: Callable[[str, int], ScalarWriter]):
        self._open_writer = open_writer
        self._writer: ScalarWriter | None = None

    def begin(self, run: TrackedRun) -> None:
        """Opens a new file of events; TensorBoard shows those of a folder as one run."""
        folder = os.path.join(run.folder, "tensorboard")
        make_folder(folder)
        self._writer = self._open_writer(folder, run.first_update)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes an event for each value."""
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, num_update)

    def close(self) -> None:
        """Closes the file."""
        assert self._writer is not None
        self._writer.close()
