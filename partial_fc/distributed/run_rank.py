"""Runs the work of one rank; an error, or Ctrl-C, is reported once and ends all ranks, as watchdog.py describes."""

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

from . import diagnosis
from .collectives import Collectives
from .errors import INTERRUPTED, PREEMPTED, USER_ERRORS, JobError, StopRequested, place_of, with_user_place
from .heartbeat import Heartbeat, open_listeners
from .interfaces import job_addresses
from .watchdog import State, Watchdog, wait_for_report

# Seconds that a rank leaves to rank 0, which reports what all ranks find.
RANK_ZERO_FIRST = 1.0
LOST_WAIT = 3.0  # seconds until the launcher or a watchdog has detected the rank that exited
PREEMPTED_WAIT = 5.0  # seconds for all ranks to meet before they end

# Raised on all ranks at the same place, because all of them have the same numbers.
_RAISED_ON_ALL_RANKS = (JobError, MissingPositiveError, FloatingPointError, StopRequested)


def run_rank(collectives: Collectives, main: Callable[[], None]) -> None:
    """Runs the work of this rank; an error is reported once on standard error and ends all ranks.

    Exit codes: 2 for an error before training_begun(), 1 for one after it, 75 if the training was asked to stop and
    is saved, 130 for Ctrl-C. mpirun passes them on, horovodrun over Gloo turns each of them into 1.

    Collectives: all-gathers ``hosts`` with a watchdog; ``error_reported`` or ``preempted`` last.
    """
    watchdog = collectives.watchdog
    try:
        if watchdog is not None:
            watchdog.advance(State.PREPARING)
            watchdog.mark("setup", waiting=False)
            _start_heartbeat(collectives, watchdog)
        main()
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # code of the user may call sys.exit
        _end(collectives, error)
    if watchdog is not None:
        watchdog.stand_down()
        watchdog.leave()
    faulthandler.cancel_dump_traceback_later()


def _start_heartbeat(collectives: Collectives, watchdog: Watchdog) -> None:
    """Connects the hosts of the job, if there are several; the records of this attempt get a name of their own."""
    rank, own_host = collectives.rank, watchdog.rank_status.host
    serves = rank == 0 and collectives.size > collectives.local_size
    listeners, contact = open_listeners(job_addresses(os.environ)) if serves else ([], None)
    met = collectives.gather_object("hosts", (own_host, secrets.token_hex(8), contact))
    _, attempt, contact = met[0]
    watchdog.rank_status.join(attempt)
    if contact is None:
        return
    hosts = [host for host, *_ in met]
    server, *others = dict.fromkeys(hosts)
    watchdog.host_of = hosts
    if rank == 0:
        watchdog.heartbeat = Heartbeat(contact, others, listeners=listeners)
    elif own_host != server and hosts.index(own_host) == rank:  # the first rank of its host
        watchdog.heartbeat = Heartbeat(contact, [server], own_host)
    if watchdog.heartbeat is not None:
        watchdog.heartbeat.start()


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _end(collectives: Collectives, error: BaseException) -> NoReturn:
    """Ends this process for what the main thread has raised, reporting it unless another rank reports why."""
    rank, watchdog, abort = collectives.rank, collectives.watchdog, collectives.backend.abort
    code, text = collectives.exit_code, f"error: {error}"
    # If all ranks raise the same error or are interrupted, rank 0 reports it, and ends the others before they do.
    after = RANK_ZERO_FIRST if rank else 0.0
    on_all_ranks = isinstance(error, _RAISED_ON_ALL_RANKS)
    if isinstance(error, StopRequested):
        code, text, abort = PREEMPTED, str(error), lambda code: None
    elif _is_interrupt(error):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not print a traceback
        code, text, on_all_ranks = INTERRUPTED, "interrupted", False
    elif collectives.backend.is_connection_error(error):
        # The rank that caused it reports why; or a watchdog, perhaps that of this process, sees that it exited.
        text, after = _message(collectives, error), LOST_WAIT
    elif not on_all_ranks:
        text = _message(collectives, error)
    if rank == 0 or not on_all_ranks:
        _report(watchdog, text, code, after)
    if code == PREEMPTED:
        # The shutdown of Horovod takes seconds, which a launcher that asked to stop may not grant; a rank may be dead.
        threading.Timer(PREEMPTED_WAIT, os._exit, [PREEMPTED]).start()
        if watchdog is not None:
            watchdog.stand_down()
    if on_all_ranks:  # a rank that exits makes the launcher end the others, so all meet first
        collectives.barrier("preempted" if code == PREEMPTED else "error_reported")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if watchdog is not None:
        watchdog.exit(code, abort)
    abort(code)
    os._exit(code)


def _message(collectives: Collectives, error: BaseException) -> str:
    """The message of an error that this rank alone knows of: one line if the user can fix it, else its traceback."""
    backend, place, doing = collectives.backend, f"error on rank {collectives.rank}", ""
    if collectives.watchdog is not None:
        status = collectives.watchdog.rank_status
        place, doing = place + diagnosis.at_update(status.num_update), f" in {status.doing}"
    if backend.is_connection_error(error):
        lost = f"lost the connection to another rank{doing}, which failed or exited"
        return f"{place}: {lost}: {backend.error_message(error)}"
    if isinstance(error, USER_ERRORS + backend.user_errors):
        text = str(error) if isinstance(error, USER_ERRORS) else backend.error_message(error)
        return with_user_place(f"{place}: {text} ({place_of(error)})", error)
    trace, users = "".join(traceback.format_exception(error)), place_in_user_code(error)
    where = f"in {users}" if users else "a bug in this program or in a library"
    return f"{place}: unexpected error, {where}:\n{trace}"


def _report(watchdog: Watchdog | None, text: str, code: int, after: float) -> None:
    """Prints why the job ends, unless another rank does within ``after`` seconds."""
    if watchdog is not None:
        wait_for_report(watchdog.rank_status, after)
        watchdog.report(text, code)
        return
    time.sleep(after)
    with contextlib.suppress(OSError):  # the reader may be gone
        say(text, sys.stderr)
