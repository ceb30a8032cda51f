"""Runs the work of one rank; an error, or Ctrl-C, is reported once and ends all ranks."""

import contextlib
import faulthandler
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from partial_fc.layer.softmax import MissingPositiveError
from partial_fc.utils.text import say
from partial_fc.utils.user_code import place_in_user_code

from .collectives import Collectives
from .diagnosis import connection_message
from .errors import INTERRUPTED, PREEMPTED, USER_ERRORS, JobError, StopRequested, place_of, with_user_place
from .heartbeat import Heartbeat, open_listeners
from .interfaces import job_addresses
from .watchdog import Watchdog

LOST_WAIT = 3.0  # seconds until the launcher or a watchdog has detected the rank that exited
PREEMPTED_WAIT = 5.0  # seconds for all ranks to meet before they end

# Raised on all ranks at the same place, because all of them have the same numbers.
_RAISED_ON_ALL_RANKS = (JobError, MissingPositiveError, FloatingPointError)


def run_rank(collectives: Collectives, main: Callable[[], None]) -> None:
    """Runs the work of this rank; an error is reported once on standard error and ends all ranks.

    Exit codes: 2 for an error before training_begun(), 1 for one after it, 75 if the training was asked to stop and
    is saved, 130 for Ctrl-C. mpirun passes them on, horovodrun over Gloo turns each of them into 1.

    Collectives: all-gathers ``hosts`` and ``heartbeat`` with a watchdog; ``error_reported`` or ``preempted`` last.
    """
    watchdog = collectives.watchdog
    try:
        if watchdog is not None:
            watchdog.on_connected()
            _start_heartbeat(collectives, watchdog)
        main()
    except StopRequested as stop:
        _end_preempted(collectives, stop)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # code of the user may call sys.exit
        if _is_interrupt(error):
            _end_interrupted(collectives)
        _end_with(collectives, error)
    _stand_down(watchdog)
    faulthandler.cancel_dump_traceback_later()


def _start_heartbeat(collectives: Collectives, watchdog: Watchdog) -> None:
    """Connects the hosts of the job, if there are several; the records of this attempt get a name of their own."""
    rank, own = collectives.rank, watchdog.rank_status.host
    met = collectives.gather_object("hosts", (own, secrets.token_hex(8)))
    watchdog.rank_status.join(met[0][1])
    hosts = [host for host, _ in met]
    server, *others = dict.fromkeys(hosts)
    if not others:
        return
    heartbeat = None
    if rank == 0:
        listeners, contact = open_listeners(job_addresses(os.environ))
        collectives.broadcast("heartbeat", contact)
        heartbeat = Heartbeat(contact, others, listeners=listeners)
    else:
        contact = collectives.broadcast("heartbeat", None)
        if own != server and hosts.index(own) == rank:  # the first rank of its host
            heartbeat = Heartbeat(contact, [server], own)
    watchdog.watch_hosts(heartbeat, hosts)
    if heartbeat is not None:
        heartbeat.start()


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _end_interrupted(collectives: Collectives) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not print a traceback
    # If all ranks are interrupted, rank 0 reports it, and ends the others before they do.
    _leave_to_rank_0(collectives)
    _report(collectives, "interrupted", INTERRUPTED)
    _exit(collectives, INTERRUPTED)


def _end_preempted(collectives: Collectives, stop: StopRequested) -> NoReturn:
    """Ends all ranks fast: the shutdown of Horovod takes seconds, which a launcher that asked to stop may not grant."""
    if collectives.rank == 0:
        _report(collectives, str(stop), PREEMPTED)
    if collectives.watchdog is not None:
        collectives.watchdog.stand_down()
    # A rank that exits makes the launcher end the others, so all ranks meet first. But one of them may be dead.
    threading.Timer(PREEMPTED_WAIT, os._exit, [PREEMPTED]).start()
    collectives.barrier("preempted")
    if collectives.watchdog is not None:
        collectives.watchdog.leave()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(PREEMPTED)


def _end_with(collectives: Collectives, error: BaseException) -> NoReturn:
    if isinstance(error, _RAISED_ON_ALL_RANKS):
        if collectives.rank == 0:
            _report(collectives, f"error: {error}")
        collectives.barrier("error_reported")
    elif collectives.backend.is_connection_error(error):
        _report_lost_connection(collectives, error)
    else:
        # If all ranks raise the same error, rank 0 reports it.
        _leave_to_rank_0(collectives)
        num_update = -1 if collectives.watchdog is None else collectives.watchdog.rank_status.num_update
        place = f"error on rank {collectives.rank}" + (f" at update {num_update}" if num_update >= 0 else "")
        if isinstance(error, USER_ERRORS + collectives.backend.user_errors):
            text = str(error) if isinstance(error, USER_ERRORS) else collectives.backend.error_message(error)
            _report(collectives, with_user_place(f"{place}: {text} ({place_of(error)})", error))
        else:
            trace, users = "".join(traceback.format_exception(error)), place_in_user_code(error)
            where = f"in {users}" if users else "a bug in this program or in a library"
            _report(collectives, f"{place}: unexpected error, {where}:\n{trace}")
    _exit(collectives, collectives.exit_code)


def _report_lost_connection(collectives: Collectives, error: BaseException) -> None:
    """Reports a lost connection, unless the rank that caused it, or one that knows that it exited, reports why."""
    rank, watchdog, text = collectives.rank, collectives.watchdog, collectives.backend.error_message(error)
    if watchdog is None:
        lost = "lost the connection to another rank, which failed or exited"
        _report(collectives, f"error on rank {rank}: {lost}: {text}")
        return
    # Meanwhile the watchdog looks for ranks that exited, and ends this process if it finds one.
    _wait_for_report(watchdog, LOST_WAIT)
    _report(collectives, f"error: {connection_message(rank, watchdog.rank_status.records())}: {text}")


def _leave_to_rank_0(collectives: Collectives) -> None:
    if collectives.rank > 0:
        _wait_for_report(collectives.watchdog, 1.0)


def _wait_for_report(watchdog: Watchdog | None, seconds: float) -> None:
    """Waits until another rank reports why the job ends, for some seconds at most."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (watchdog is not None and watchdog.rank_status.error_reported()):
        time.sleep(0.05)


def _report(collectives: Collectives, text: str, code: int | None = None) -> None:
    """Prints why the job ends, unless another rank does; ``code`` is None for an error's. This thread then ends it."""
    if collectives.watchdog is not None:
        collectives.watchdog.reporter.report(text, collectives.exit_code if code is None else code)
        return
    with contextlib.suppress(OSError):  # the reader may be gone
        say(text, sys.stderr)


def _exit(collectives: Collectives, code: int) -> NoReturn:
    """Ends the job with this exit code, unless another rank has reported why it ends: then with that rank's."""
    if collectives.watchdog is not None:
        code = collectives.watchdog.reporter.exit_code(code)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    _stand_down(collectives.watchdog)
    collectives.backend.abort(code)
    # Not sys.exit: the shutdown of Horovod waits for the other ranks, which may be waiting for this one.
    os._exit(code)


def _stand_down(watchdog: Watchdog | None) -> None:
    if watchdog is not None:
        watchdog.stand_down()
        watchdog.leave()
