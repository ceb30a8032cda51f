"""The output folder of a training and its owner, and the log and progress bar."""

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from partial_fc.data.sources.forms import set_name
from partial_fc.distributed.processes import started_by_mpi
from partial_fc.utils.atomic_io import no_follow, replace_file
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.shared_folders import refuse_writable_by_others, resolved
from partial_fc.utils.streams import BestEffortFile, lost_output, text_of
from partial_fc.utils.text import MessageFormatter

from .trackers.container import warn_without

CHECKPOINTS = "checkpoints"  # folder in the output folder
_LOG, _OWNER, _LOCK = "training.log", ".run", ".lock"
_FIRST_LINES = ".training.log"  # log of a training that has not begun
_EARLIER = "earlier-"  # prefix of the folder of an earlier training, followed by the time at which it ended
_LATEST = 2**37  # seconds: a date in the year 6325, because some file systems allow any time
BRIEF = "brief"  # attribute of a log record: a shorter text for terminals
LOG_FORMAT = "Training: %(asctime)s-%(message)s"


def output_folder(settings) -> str:
    """Returns the output folder of a training: the setting ``output``, or a folder in ``models_root``.

    Raises:
        ValueError: The name is not UTF-8; some libraries that write there accept nothing else.
    """
    loss = settings.margin.rpartition(":")[2] if settings.loss == "own" else settings.loss
    name = f"{settings.network.rpartition(':')[2]}-{loss}-{data_name(settings)}"
    folder = settings.output or os.path.join(settings.models_root, name)
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the output folder {folder} is not valid UTF-8: set another output or models_root") from None
    return folder


def data_name(settings: Mapping[str, Any]) -> str:
    """Returns the name of a training set; a user's own set has its own name."""
    task = settings["task"].rpartition(":")[2] if ":" in settings["task"] else ""
    heads = os.path.splitext(os.path.basename(settings.get("heads", "")))[0]
    own_name = settings["data_name"] or set_name(settings["rec"]) or heads or task
    return (settings["dataset"] == "own" and own_name) or settings["dataset"]


def prepare_folder(folder: str, keep: bool, inputs: Iterable[str]) -> bool:
    """Creates the output folder, or checks that a training may begin in it; an earlier training's files stay in place.

    Returns whether it was created.

    Args:
        folder: the output folder.
        keep: whether to continue in it as it is.
        inputs: paths that this training will read.

    Raises:
        OSError: The folder cannot be created, other users can write to it or have made a link to it, or a running
            training writes to it.
        ValueError: An input is among the files that begin_run has to move, or the folder holds something else.
    """
    resolved(folder)  # refuses a stranger's link before anything behind it is looked at
    _refuse_running(folder)
    if not _earlier_training(folder):
        # Hidden files come from file systems, which also make lost+found, or from a refused or killed training.
        names = os.listdir(folder) if os.path.isdir(folder) else []
        others = [name for name in names if not name.startswith((".", _EARLIER)) and name != "lost+found"]
        if others:
            raise ValueError(
                f"the output folder {folder} holds no training, but other files ({min(others)}): set output or "
                "models_root to a new or empty folder"
            )
    elif not keep:
        inside = os.path.join(os.path.realpath(folder), "")
        for path in inputs:
            real = os.path.join(os.path.realpath(path), "")
            if real.startswith(inside) and not real.startswith(inside + _EARLIER):
                raise ValueError(
                    f"{path} is in the output folder, but {folder} has an earlier training and it would be moved: set "
                    "another output or models_root"
                )
    is_new = not os.path.isdir(folder)
    _create(folder)
    return is_new


def begin_run(folder: str, run: str, earlier: Sequence[str]) -> None:
    """Moves an earlier training into a subfolder, then writes the name of the run that owns the folder.

    The output folder itself keeps its name, because it may be a link or a mounted disk. Called only when nothing can
    refuse the training any more, so that a refused one leaves everything in its place.

    Raises:
        OSError: A file cannot be moved or written.
    """
    if earlier:
        ended = time.localtime(min(max(0, os.path.getmtime(os.path.join(folder, earlier[-1]))), _LATEST))
        aside = os.path.join(folder, _EARLIER + time.strftime("%Y%m%d-%H%M%S", ended))
        while os.path.islink(aside) or os.path.lexists(os.path.join(aside, earlier[-1])):
            aside += "-2"
        os.makedirs(aside, exist_ok=True)
        # Moves into the opened folder, not to its name, which another user might replace by a link meanwhile.
        opened = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in earlier:
                os.rename(os.path.join(folder, name), name, dst_dir_fd=opened)
        finally:
            os.close(opened)
        logging.info("the earlier training in this folder is now in %s", aside)
    if os.path.exists(os.path.join(folder, _FIRST_LINES)):
        os.rename(os.path.join(folder, _FIRST_LINES), os.path.join(folder, _LOG))
    if not begun_by(folder, run):
        replace_file(os.path.join(folder, _OWNER), [run.encode()])


def begun_by(folder: str, run: str) -> bool:
    """Returns whether this run owns the folder; a restart keeps its run's name."""
    try:
        return read_regular(os.path.join(folder, _OWNER), len(run.encode())) == run.encode()
    except OSError:
        return False


def wait_for_earlier_attempt(folder: str) -> None:
    """Waits up to a minute until no training writes to the folder: ranks that lost their launcher still save."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            return _refuse_running(folder)
        except OSError:
            time.sleep(0.2)


def check_writable(folder: str, rank: int) -> None:
    """Creates the folder if needed and writes a byte to it, so that a read-only disk is reported before training.

    Raises:
        OSError: The folder cannot be written to, or all users can write to it.
    """
    _create(folder)
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{rank}_probe-", dir=folder, buffering=0) as file:
            file.write(b"\0")
    except OSError as error:
        raise OSError(
            f"cannot write to the output folder {folder} ({error.strerror}): set output or models_root"
        ) from error


def _earlier_training(folder: str) -> list[str]:
    """Returns the files and folders that begin_run has to move; empty if there is no earlier training.

    The last one is a trace that identifies an earlier training, so that the next start continues an interrupted move.
    """
    # Any of the traces: a user may have removed the log, and checkpoints of two trainings must not mix.
    traces = [name for name in (_LOG, _OWNER, CHECKPOINTS) if os.path.exists(os.path.join(folder, name))]
    if not traces:
        return []
    names = [name for name in os.listdir(folder) if not name.startswith((".", _EARLIER))]
    return [*sorted({*names, *traces} - {traces[0], "lost+found"}), traces[0]]


def _refuse_running(folder: str) -> None:
    """Raises OSError if a training, which locks the folder in open_run_folder, writes to it."""
    path = os.path.join(folder, _LOCK)
    if os.path.exists(path):
        with open(path, "rb", opener=no_follow) as file:
            _lock(file, fcntl.LOCK_SH)


def _lock(file, kind: int) -> None:
    """Locks an open file, or raises OSError if another process holds the lock; warns if there are no file locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        folder = os.path.dirname(file.name)
        raise OSError(
            f"another training is writing to {folder}: wait until it ends, or set output or models_root"
        ) from error
    except OSError as error:
        logging.warning(
            "cannot lock %s (%s): a second training could write to the same folder", file.name, error.strerror
        )


def _create(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot create the output folder {folder} ({error.strerror}): set output or models_root"
        ) from error
    refuse_writable_by_others(folder)


class RunFolder(NamedTuple):
    """An open output folder."""

    path: str
    earlier: list[str]  # files and folders of an earlier training, which this one does not continue


@contextlib.contextmanager
def console(rank: int) -> Iterator[None]:
    """A context in which rank 0 logs to standard output, and the other ranks log warnings to standard error.

    Removes handlers that logging installs when a user's module logs a line: they would repeat all lines.
    """
    main, logger = rank == 0, logging.getLogger()
    for other in logger.handlers[:]:
        if type(other) is logging.StreamHandler:
            logger.removeHandler(other)
    logger.setLevel(logging.INFO if main else logging.WARNING)
    with _logging_to(_StdoutHandler() if main else logging.StreamHandler(sys.stderr), rank):
        yield


@contextlib.contextmanager
def open_run_folder(path: str, rank: int, keep: bool, is_new: bool = False) -> Iterator[RunFolder]:
    """A context with the output folder, in which rank 0 also logs to a file.

    A full disk does not end the training. Without ``keep`` the log has another name until begin_run. Removes a new
    folder after an error before begin_run. Raises OSError if another training writes to the folder, or its log is a
    link.
    """
    if rank:
        yield RunFolder(path, [])
        return
    with contextlib.ExitStack() as removing, open(os.path.join(path, _LOCK), "a", opener=no_follow) as lock:
        _lock(lock, fcntl.LOCK_EX)  # fails if a training was started at the same time
        if is_new:
            removing.callback(_remove_unused, path)
        earlier = [] if keep else _earlier_training(path)
        log, first_lines = os.path.join(path, _LOG), os.path.join(path, _FIRST_LINES)
        if keep:
            with contextlib.suppress(OSError):
                os.remove(first_lines)  # from an attempt that was refused or killed
        with _logging_to(_LogFile(log if keep else first_lines), rank):
            yield RunFolder(path, earlier)


def _remove_unused(folder: str) -> None:
    """Removes a folder in which no training has begun, unless it holds files of others."""
    if not os.path.exists(os.path.join(folder, _OWNER)):
        for name in (_LOCK, _FIRST_LINES):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(folder)


@contextlib.contextmanager
def _logging_to(handler: logging.Handler, rank: int) -> Iterator[None]:
    handler.setFormatter(MessageFormatter(f"rank {rank}: %(message)s" if rank else LOG_FORMAT))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def progress_bar(rank: int, max_update: int, num_update: int) -> tqdm:
    """Returns a progress bar from ``num_update`` to ``max_update``, shown on rank 0 if there is a terminal."""
    # Under mpirun a rank writes to a pipe, so run.sh has looked for the terminal.
    shown = not rank and (os.environ.get("PARTIAL_FC_TERMINAL") == "1" or sys.stderr.isatty())
    columns = shutil.get_terminal_size((100, 24)).columns  # of COLUMNS, which run.sh sets, or of the terminal
    return tqdm(total=max_update, initial=num_update, unit="step", ncols=columns, file=sys.stderr, disable=not shown)


class _LogFile(logging.StreamHandler):
    """Writes to a file, and notes there when the standard output is lost."""

    def __init__(self, path: str):
        super().__init__(text_of(BestEffortFile(path, "ab", lambda error: warn_without(path, error))))
        self._lost = ""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if not self._lost and (lost := lost_output()):
            self._lost = lost
            logging.warning("the output cannot be written any more (%s): the training goes on, and logs here", lost)

    def close(self) -> None:
        self.stream.close()
        super().close()


class _StdoutHandler(logging.Handler):
    """Writes to standard output without breaking the progress bar; to a terminal the brief form of a line."""

    def __init__(self) -> None:
        super().__init__()
        self._is_terminal = sys.stdout.isatty() and not started_by_mpi()  # mpirun gives each rank a terminal

    def emit(self, record: logging.LogRecord) -> None:
        brief = getattr(record, BRIEF, "") if self._is_terminal else ""
        tqdm.write(brief or self.format(record), file=sys.stdout)
        sys.stdout.flush()
