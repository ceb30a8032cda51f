"""Outputs whose loss ends no program: streams whose reader has gone, or that are closed, and files on a full disk."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from .atomic_io import no_follow

_lost: list[str] = []  # reasons


class LastingFile(io.FileIO):
    """A file to which a write does not fail: what cannot be written is left out, and ``failed`` is set.

    ``file`` is a path, or a descriptor, which stays open when this object is closed; ``on_loss`` is called with the
    error of the first write that fails.
    """

    def __init__(self, file: str | int, mode: str, on_loss: Callable[[OSError], None]):
        super().__init__(file, mode, closefd=not isinstance(file, int), opener=no_follow)
        self.failed, self._on_loss = False, on_loss

    def write(self, data) -> int:
        """Writes bytes; returns how many of them need not be written again."""
        try:
            return super().write(data)
        except OSError as error:
            if not self.failed:
                self.failed = True
                self._on_loss(error)
            return len(data)

    def close(self) -> None:
        """Closes the file; file servers report only here that their disk is full."""
        with suppress(OSError):
            super().close()


def text_of(file: LastingFile, encoding: str = "utf-8") -> io.TextIOWrapper:
    """Returns a stream that writes each line at once, and escapes what the encoding does not have."""
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, "backslashreplace", line_buffering=True)


def keep_streams() -> None:
    """From now on the program goes on when nobody reads its standard output and error; see lost_output().

    A closed descriptor from 0 to 2 would be that of the next file that is opened, into which a library might print.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # cannot be written either
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # not where a test or a notebook has replaced it
            file = LastingFile(descriptor, "wb", lambda error: _lost.append(error.strerror or str(error)))
            setattr(sys, name, text_of(file, getattr(stream, "encoding", "utf-8")))


def lost_output() -> str:
    """Returns why an output of this program, or of run.sh around it, could not be written; "" if all could."""
    if _lost:
        return _lost[0]
    # Where the relay of setup-utils/job.sh writes the message of cat.
    with suppress(OSError), open(os.environ.get("PARTIAL_FC_OUTPUT_LOST", ""), errors="replace") as file:
        return file.readline().strip().rpartition(": ")[2]
    return ""
