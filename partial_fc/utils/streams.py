"""Output that may be lost without ending the program: streams without a reader, closed streams, a full disk."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from .atomic_io import no_follow

_lost: list[str] = []  # why output was lost


class BestEffortFile(io.FileIO):
    """A file whose writes never raise. Data that cannot be written is dropped.

    Args:
        file: a path; or a descriptor, which close() leaves open.
        mode: as for open().
        on_loss: called with the error of the first write that fails.

    Attributes:
        failed: whether a write has failed.
    """

    def __init__(self, file: str | int, mode: str, on_loss: Callable[[OSError], None]):
        super().__init__(file, mode, closefd=not isinstance(file, int), opener=no_follow)
        self.failed, self._on_loss = False, on_loss

    def write(self, data) -> int:
        """Writes bytes; returns the number of bytes that were written or dropped."""
        try:
            return super().write(data)
        except OSError as error:
            if not self.failed:
                self.failed = True
                self._on_loss(error)
            return len(data)

    def close(self) -> None:
        """Closes the file, ignoring errors: file servers report a full disk only here."""
        with suppress(OSError):
            super().close()


def text_of(file: BestEffortFile, encoding: str = "utf-8") -> io.TextIOWrapper:
    """Returns a line-buffered text stream that escapes characters that the encoding lacks."""
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, "backslashreplace", line_buffering=True)


def keep_streams() -> None:
    """Makes the program continue when nobody reads its standard output and error anymore; see lost_output().

    Closed standard descriptors are opened, because the next file to be opened would receive the same number, and
    libraries would print into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # writes fail, as to a closed descriptor
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # unless a test or a notebook has replaced it
            file = BestEffortFile(descriptor, "wb", lambda error: _lost.append(error.strerror or str(error)))
            setattr(sys, name, text_of(file, getattr(stream, "encoding", "utf-8")))


def lost_output() -> str:
    """Returns why output of this program, or of run.sh around it, could not be written; "" if none was lost."""
    if _lost:
        return _lost[0]
    # The relay of setup-utils/job.sh writes the error message of cat to this file.
    with suppress(OSError), open(os.environ.get("PARTIAL_FC_OUTPUT_LOST", ""), errors="replace") as file:
        return file.readline().strip().rpartition(": ")[2]
    return ""
