"""What the ranks of a job do together, and how they end: an error, or Ctrl-C, is told once and ends all of them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.distributed import env as launch
from partial_fc.distributed.consistency import differences
from partial_fc.distributed.diagnosis import connection_sentence
from partial_fc.distributed.heartbeat import HostWatch, open_listener
from partial_fc.distributed.watchdog import FAILED, PREEMPTED, REFUSED, Watchdog
from partial_fc.layer.softmax import MissingPositiveError

from .errors import sentence

Result = TypeVar("Result")

# What a user can mend: a sentence is enough. Anything else is a defect and shows its traceback.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)

EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells have it

# What Horovod says on the ranks that are left when one has gone.
LOST = ("Horovod has been shut down", "Connection closed by peer", "Connection reset by peer", "gloo/transport")
LOST_WAIT = 3.0  # seconds until the launcher or a sentinel has found the dead one
MEETING = 5.0  # seconds for all ranks to meet before they end


class JobError(ValueError):
    """An error that every rank knows of."""


class Preempted(Exception):
    """The job was asked to stop, and everything that it needs to go on is saved; raised on all ranks.

    Attributes:
        num_update: of the checkpoint.
    """

    def __init__(self, num_update: int):
        super().__init__(f"stopped after update {num_update}, which is saved: --resume auto goes on from there")
        self.num_update = num_update


# Raised on all ranks at the same point, because all of them have seen the same numbers.
_KNOWN_EVERYWHERE = (JobError, MissingPositiveError, FloatingPointError)


# Of this process, which is one rank of one job.
_watchdog: Watchdog | None = None
_patience = 0.0  # set by watch()
_exit_code = REFUSED


def guarded_by(watchdog: Watchdog) -> None:
    """From now on this sentinel is told what the rank does, and ends it where it cannot do so itself."""
    global _watchdog
    _watchdog = watchdog


def gather(name: str, value: Any) -> list[Any]:
    """The values of all ranks, in their order (all-gather ``name``)."""
    if hvd.size() == 1:
        return [value]
    with waiting(f"all-gather {name}"):
        return hvd.allgather_object(value, name=name)


def largest(name: str, value: float) -> float:
    """The largest of the ranks' values, as float32 (all-reduce ``name``)."""
    if hvd.size() == 1:
        return value
    with waiting(f"all-reduce {name}"):
        return float(hvd.allreduce(mx.nd.array([value]), op=hvd.Max, name=name).asscalar())


def assert_same_on_all_ranks(facts: dict) -> None:
    """Makes sure that what must be the same on all ranks is (all-gather ``assert_same_on_all_ranks``).

    Args:
        facts: name -> value as JSON has it.

    Raises:
        JobError: on every rank, naming the one that differs and in what.
    """
    found = differences(gather("agree", facts))
    if found:
        raise JobError(found)


def run_on_all_ranks(name: str, work: Callable[[], Result]) -> Result:
    """Runs ``work`` on every rank and returns its result, or raises the same error on all of them.

    Collectives: all-gather of what went wrong, named ``together.<name>``.

    Raises:
        JobError: ``work`` failed on some rank; the error of the lowest one, with its number.
    """
    result, problem = None, None
    _mark(name)
    report_progress()
    try:
        result = work()
    except USER_ERRORS + (RuntimeError,) as error:  # MXNet's own, of which binding makes plain RuntimeErrors
        problem = sentence(error)
    problems = gather(f"together.{name}", problem)
    report_progress()
    failed = [rank for rank, text in enumerate(problems) if text]
    if failed:
        where = "" if len(failed) == len(problems) else f" (rank {failed[0]} of {len(problems)})"
        raise JobError(problems[failed[0]] + where)
    return result


def on_rank_zero(name: str, work: Callable[..., Result], *args: Any) -> Result | None:
    """Runs ``work(*args)`` on rank 0 only; an error there is raised on all ranks.

    Collectives: all-gather of the error, named ``together.<name>``.

    Returns:
        The result on rank 0; None on the other ranks.

    Raises:
        JobError: ``work`` failed on rank 0; raised on every rank.
    """
    return run_on_all_ranks(name, lambda: work(*args) if hvd.rank() == 0 else None)


def watch(seconds: float, host_seconds: float) -> None:
    """Ends the job, showing where this rank stood, unless :func:`report_progress` is called within ``seconds``.

    A rank that waits for one that never comes has no other end under Gloo, nor under MPI when the other
    is stopped rather than dead. A rank that waits for one that is at work waits on.

    Args:
        seconds: see above; 0 waits for ever.
        host_seconds: the time without a byte from another host after which the job ends too; 0 waits for ever.
    """
    global _patience
    _patience = seconds
    if _watchdog is not None:
        _watchdog.patience, _watchdog.host_patience = seconds, host_seconds
    report_progress()


def report_progress(num_update: int | None = None) -> None:
    """Tells the watch that this rank goes on: called at every step, phase and batch of a verification.

    Args:
        num_update: the update that has just been done.
    """
    if _watchdog is not None:
        _watchdog.mark(None if num_update is None else "what follows it", num_update=num_update)
    elif _patience:
        faulthandler.dump_traceback_later(_patience, exit=True)


@contextlib.contextmanager
def waiting(name: str) -> Iterator[None]:
    """Around what ends only when all ranks take part, such as ``all-gather features``."""
    if _watchdog is None:
        yield
        return
    before = _watchdog.doing
    _watchdog.mark(name, waiting=True)
    yield
    # Not after an error: what is told of it names the place.
    _watchdog.mark(*before)


def stop_requested() -> bool:
    """Whether this rank was asked to save and end: by SIGUSR1, by SIGTERM, or because its launcher is gone."""
    return _watchdog is not None and _watchdog.stop_requested


def training_begun() -> None:
    """From now on an error ends the job with exit code 1, and a request to stop is one to save first."""
    global _exit_code
    _exit_code = FAILED
    if _watchdog is not None:
        _watchdog.training_begun()


def run(main: Callable[[], None]) -> None:
    """Runs the training of this rank; an error is told once on standard error and ends all ranks.

    Exit codes: 2 for an error before :func:`training_begun`, 1 for one after it, 75 where the training was asked to
    stop and is saved, 130 and one word for Ctrl-C. mpirun passes them on, horovodrun over Gloo makes each of them 1.
    """
    try:
        if _watchdog is not None:
            _watchdog.met()
            _watch_hosts(_watchdog)
        main()
    except Preempted as stop:
        _end_preempted(stop)
    except (Exception, KeyboardInterrupt) as error:
        if _interrupted(error):
            _end_interrupted()
        _end_with(error)
    if _watchdog is not None:
        _watchdog.stand_down()
        _watchdog.leave()
    faulthandler.cancel_dump_traceback_later()


def _watch_hosts(watchdog: Watchdog) -> None:
    """Connects the hosts of the job, where there are several (all-gathers ``hosts``, ``heartbeat``)."""
    rank, own = watchdog.place.rank, watchdog.board.host
    hosts = gather("hosts", own)
    center, *others = dict.fromkeys(hosts)
    if not others:
        return
    listener, contact = open_listener(_own_addresses()) if rank == 0 else (None, None)
    contact = gather("heartbeat", contact)[0]
    if listener is not None:
        watch = HostWatch.server(listener, contact, others)
    elif own != center and hosts.index(own) == rank:  # the first of its host
        watch = HostWatch.client(contact, own, center)
    else:
        watch = None
    watchdog.watch_hosts(watch, hosts)
    if watch is not None:
        watch.start()


def _own_addresses() -> list[str]:
    found = launch.addresses_in(launch.networks(os.environ))
    return [address for addresses in found.values() for address in addresses]


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt, or came while one was dealt with."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _end_interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who presses it once more gets no traceback for that
    # Where every rank is interrupted, rank 0 tells it and ends the others before they do.
    _leave_to_rank_0()
    _tell("interrupted")
    _end(EXIT_INTERRUPTED)


def _end_preempted(stop: Preempted) -> NoReturn:
    """All ranks are here. Horovod's own ending takes seconds, which a launcher that has asked to stop may not give."""
    if hvd.rank() == 0:
        _tell(str(stop))
    if _watchdog is not None:
        _watchdog.stand_down()
    # A rank that ends makes the launcher end the others: none shall be on its way here. But it may be dead.
    threading.Timer(MEETING, os._exit, [PREEMPTED]).start()
    if hvd.size() > 1:
        hvd.allgather(mx.nd.zeros((1,)), name="preempted")
    if _watchdog is not None:
        _watchdog.leave()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(PREEMPTED)


def _end_with(error: BaseException) -> NoReturn:
    if isinstance(error, _KNOWN_EVERYWHERE):
        if hvd.rank() == 0:
            _tell(f"error: {error}")
        if hvd.size() > 1:
            hvd.allgather(mx.nd.zeros((1,)), name="error_told")
    elif _connection_lost(error):
        _tell_of_the_lost()
    else:
        # Where every rank stumbles over the same thing, rank 0 tells it.
        _leave_to_rank_0()
        if isinstance(error, USER_ERRORS):
            text = f"{error} ({_place(error)})"
        else:
            text = f"a defect of the program or of its stack:\n{''.join(_lines_of(error))}"
        colon = "," if text.startswith("a defect") else ":"
        _tell(f"error on rank {hvd.rank()}{_at_update()}{colon} {text}")
    _end(_exit_code)


def _connection_lost(error: BaseException) -> bool:
    """Whether a collective has failed because another rank has left it."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)


def _tell_of_the_lost() -> None:
    """Another rank is to blame: leaves the word to it, or to who knows that it is dead."""
    if _watchdog is None:
        _tell(f"error on rank {hvd.rank()}: lost the connection to another rank, which has failed or is gone")
        return
    end = time.monotonic() + LOST_WAIT
    while time.monotonic() < end and not _watchdog.board.told():
        time.sleep(0.1)  # the sentinel looks for the dead, and ends this process when it finds one
    _tell(f"error: {connection_sentence(hvd.rank(), _watchdog.board.records())}")


def _leave_to_rank_0() -> None:
    end = time.monotonic() + (1 if hvd.rank() else 0)
    while time.monotonic() < end and not (_watchdog is not None and _watchdog.board.told()):
        time.sleep(0.05)


def _at_update() -> str:
    return f" at update {_watchdog.num_update}" if _watchdog is not None and _watchdog.num_update >= 0 else ""


def _tell(text: str) -> None:
    """Tells how the job ends, unless another rank does; from then on the sentinel leaves the ending to this thread."""
    if _watchdog is not None:
        _watchdog.telling.acquire()
        if not _watchdog.board.claim_error_report():
            return
    with contextlib.suppress(OSError):  # who reads it may be gone
        print(text, file=sys.stderr, flush=True)


def _mark(name: str) -> None:
    if _watchdog is not None:
        _watchdog.mark(name)


def _lines_of(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, error.__traceback__)


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def _end(code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if _watchdog is not None:
        _watchdog.stand_down()
        _watchdog.leave()
    if hvd.size() > 1 and hvd.mpi_enabled():
        from mpi4py import MPI  # it would start MPI by itself in a job that runs over Gloo

        MPI.COMM_WORLD.Abort(code)
    # Not sys.exit: Horovod's own ending waits for the other ranks, which may be waiting for this one.
    os._exit(code)
