"""TensorBoard: events in the folder ``tensorboard`` of the training."""

import os
import secrets
from collections.abc import Callable, Mapping

from partial_fc.utils.shared_folders import make_folder

from .tracker import ScalarWriter, TrackedRun


def drawn_ending() -> str:
    """Returns a random suffix for the name of an event file: nobody can plant a link under a name they cannot guess."""
    return f".{secrets.token_hex(4)}"


class TensorBoard:
    """Writes events with mxboard or torch.utils.tensorboard; see Framework for ``open_writer``."""

    threads_of = ("mxboard", "tensorboard")
    _writer: ScalarWriter

    def __init__(self, open_writer: Callable[[str, int], ScalarWriter]):
        self._open_writer = open_writer

    def begin(self, run: TrackedRun) -> None:
        """Opens a new event file; TensorBoard shows all files of a folder as one run."""
        folder = os.path.join(run.folder, "tensorboard")
        make_folder(folder)
        self._writer = self._open_writer(folder, run.first_update)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes an event for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, num_update)

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
