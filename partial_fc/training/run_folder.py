"""The output folder of a training, and where its lines go."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from tqdm import tqdm

from partial_fc.checkpoint import replace_file

_RUN = ".run"
LOG_FORMAT = "Training: %(asctime)s-%(message)s"


def prepare_folder(folder: str, keep: bool) -> None:
    """Makes the folder; one that holds an earlier training is kept beside it, under the time it ended.

    Args:
        folder: of the outputs.
        keep: go on in the folder as it is.

    Raises:
        OSError: it cannot be made, or a training that still runs writes to it.
    """
    log = os.path.join(folder, "training.log")
    if os.path.exists(log):
        _refuse_live(log)
        if not keep:
            ended = time.strftime("%Y%m%d-%H%M%S", time.localtime(os.path.getmtime(log)))
            os.rename(folder, f"{folder}.{ended}")
    _make(folder)


def begin_run(folder: str, run: str) -> None:
    """Notes whose folder it is.

    Raises:
        OSError: it cannot be written.
    """
    if not begun_by(folder, run):
        replace_file(os.path.join(folder, _RUN), [run.encode()])


def begun_by(folder: str, run: str) -> bool:
    """Whether that run has begun the folder; its restarts are the same run."""
    try:
        with open(os.path.join(folder, _RUN), encoding="utf-8") as file:
            return file.read() == run
    except OSError:
        return False


def _refuse_live(log: str) -> None:
    """Output holds a lock on its log as long as the training runs."""
    with open(log, "rb") as file:
        if not _lock(file, fcntl.LOCK_SH):
            folder = os.path.dirname(log)
            raise OSError(f"another training is writing to {folder}: let it end, or set models_root")


def _lock(file, kind: int) -> bool:
    """Locks a file; False where another process has it. File systems without locks let everybody pass."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logging.warning("no lock on %s (%s): a second training could write there", file.name, error.strerror)
    return True


def check_writable(folder: str, rank: int) -> None:
    """Makes the folder where another host has not, and writes a byte to it now rather than hours later.

    Raises:
        OSError: it cannot be written.
    """
    _make(folder)
    probe = os.path.join(folder, f".{rank}_probe")
    try:
        with open(probe, "wb") as file:
            file.write(b"\0")
        os.remove(probe)
    except OSError as error:
        raise OSError(f"cannot write to the output folder {folder} ({error.strerror}): set models_root") from error


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the output folder {folder} ({error.strerror}): set models_root") from error


class ScalarWriter(Protocol):
    """What writes TensorBoard events: mxboard's SummaryWriter, or PyTorch's."""

    def add_scalar(self, tag: str, value: float, global_step: int, /) -> None: ...

    def close(self) -> None: ...


class Output:
    """Log file, log lines, progress bar and TensorBoard events of one rank; only rank 0 has more than warnings.

    Use it in a ``with``, so that the files are closed.

    Args:
        folder: exists and can be written.
        rank: this rank.
        max_update, num_update: length of the bar, and where it begins.
        open_writer: opens the TensorBoard events of a folder; called on rank 0.

    Attributes:
        bar: tqdm bar, or None where rank 0 has no terminal.
        writer: of TensorBoard events on rank 0, else None.
    """

    def __init__(
        self, folder: str, rank: int, max_update: int, num_update: int, open_writer: Callable[[str], ScalarWriter]
    ):
        self.folder = folder
        self.bar: tqdm | None = None
        self.writer: ScalarWriter | None = None
        self._handlers: list[logging.Handler] = [_LineHandler()] if rank == 0 else [logging.StreamHandler(sys.stderr)]
        if rank == 0:
            log = logging.FileHandler(os.path.join(folder, "training.log"), encoding="utf-8")
            _lock(log.stream, fcntl.LOCK_EX)
            self._handlers.append(log)
            self.writer = open_writer(os.path.join(folder, "tensorboard"))
            if _is_terminal():
                columns = int(os.environ.get("COLUMNS", 0)) or 100
                self.bar = tqdm(total=max_update, initial=num_update, unit="step", ncols=columns, file=sys.stderr)
        logger = logging.getLogger()
        logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
        for handler in self._handlers:
            handler.setFormatter(logging.Formatter(LOG_FORMAT if rank == 0 else f"rank {rank}: %(message)s"))
            logger.addHandler(handler)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.writer is not None:
            self.writer.close()
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()


class _LineHandler(logging.Handler):
    """Standard output, past the progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def _is_terminal() -> bool:
    # Under mpirun a rank writes to a pipe; run.sh has looked at the terminal for it.
    return os.environ.get("PARTIAL_FC_TERMINAL") == "1" or sys.stderr.isatty()
