"""Runs the work of one rank. An error or Ctrl-C is reported once and ends all ranks, see watchdog.py."""

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
from .errors import (
    INTERRUPTED,
    NOTHING_SAVED,
    PREEMPTED,
    USER_ERRORS,
    JobError,
    StopRequested,
    place_of,
    with_user_place,
)
from .heartbeat import Heartbeat, open_listeners
from .interfaces import job_addresses
from .watchdog import State, Watchdog, wait_for_report

# In seconds.
RANK_ZERO_FIRST = 1.0  # for rank 0 to report an error that all ranks raise
LOST_WAIT = 3.0  # for the launcher or a watchdog to detect the rank that exited
PREEMPTED_WAIT = 5.0  # for all ranks to reach the last barrier

# All ranks raise these at the same point, because they compute with the same numbers.
_RAISED_ON_ALL_RANKS = (JobError, MissingPositiveError, FloatingPointError, StopRequested)


def run_rank(collectives: Collectives, main: Callable[[], None]) -> None:
    """Runs the work of this rank. An error is reported once on standard error and ends all ranks.

    The exit code is 2 for an error before training_begun(), 1 for one after it, 75 for a training that was saved after
    a stop request, and 130 for Ctrl-C, whether the training was saved or not. mpirun returns this code, horovodrun over
    Gloo always 1.

    Collectives: all-gather ``hosts`` if it has a watchdog; ``error_reported`` or ``preempted`` last.
    """
    watchdog = collectives.watchdog
    try:
        if watchdog is not None:
            watchdog.advance(State.PREPARING)
            watchdog.mark("setup", waiting=False)
            _start_heartbeat(collectives, watchdog)
        main()
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # the user's code may call sys.exit
        _end(collectives, error)
    if watchdog is not None:
        watchdog.stand_down()
        watchdog.leave()
    faulthandler.cancel_dump_traceback_later()


def _start_heartbeat(collectives: Collectives, watchdog: Watchdog) -> None:
    """Names this attempt in the rank status store, and connects the hosts of the job if there are several."""
    rank, host = collectives.rank, watchdog.rank_status.host
    is_server = rank == 0 and collectives.size > collectives.local_size
    listeners, contact = open_listeners(job_addresses(os.environ)) if is_server else ([], None)
    gathered = collectives.gather_object("hosts", (host, secrets.token_hex(8), contact))
    _, attempt, contact = gathered[0]
    watchdog.rank_status.join(attempt)
    if contact is None:
        return
    host_of = [host for host, *_ in gathered]
    server, *others = dict.fromkeys(host_of)
    watchdog.host_of = host_of
    if rank == 0:
        watchdog.heartbeat = Heartbeat(contact, others, listeners=listeners)
    elif host != server and host_of.index(host) == rank:  # the first rank of its host
        watchdog.heartbeat = Heartbeat(contact, [server], host)
    if watchdog.heartbeat is not None:
        watchdog.heartbeat.start()


def _interrupt(error: BaseException | None) -> KeyboardInterrupt | None:
    """Returns the KeyboardInterrupt if an error is one or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _end(collectives: Collectives, error: BaseException) -> NoReturn:
    """Ends this process because of an error of the main thread; reports it unless another rank has reported."""
    rank, watchdog, abort = collectives.rank, collectives.watchdog, collectives.backend.abort
    code, text = collectives.exit_code, f"error: {error}"
    # An error or Ctrl-C on all ranks is reported by rank 0 alone, which ends the other ranks before they report it.
    after = RANK_ZERO_FIRST if rank else 0.0
    on_all_ranks = isinstance(error, _RAISED_ON_ALL_RANKS)
    is_saved = isinstance(error, StopRequested)
    if is_saved:
        code, text, abort = PREEMPTED, str(error), lambda code: None
        if watchdog is not None and watchdog.interrupted:
            code = INTERRUPTED
    elif interrupt := _interrupt(error):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a further Ctrl-C must not print a traceback
        code, text, on_all_ranks = INTERRUPTED, str(interrupt) or NOTHING_SAVED, False
    elif collectives.backend.is_connection_error(error):
        # The cause is another rank: it reports why it ends, or a watchdog detects that it was killed.
        text, after = _message(collectives, error), LOST_WAIT
    elif not on_all_ranks:
        text = _message(collectives, error)
    if rank == 0 or not on_all_ranks:
        _report(watchdog, text, code, after)
    if is_saved:
        # Do not wait at the barrier for long: a rank may be dead, and a launcher soon kills after its stop request.
        threading.Timer(PREEMPTED_WAIT, os._exit, [code]).start()
        if watchdog is not None:
            watchdog.stand_down()
    if on_all_ranks:  # when the first rank exits, the launcher kills the others, so they wait for each other here
        collectives.barrier("preempted" if is_saved else "error_reported")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if watchdog is not None:
        watchdog.exit(code, abort)
    abort(code)
    os._exit(code)


def _message(collectives: Collectives, error: BaseException) -> str:
    """Returns the message of an error of this rank alone: one line if the user can fix it, else with the traceback."""
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
    trace, user_place = "".join(traceback.format_exception(error)), place_in_user_code(error)
    where = f"in {user_place}" if user_place else "a bug in this program or in a library"
    return f"{place}: unexpected error, {where}:\n{trace}"


def _report(watchdog: Watchdog | None, text: str, code: int, after: float) -> None:
    """Prints why the job ends, unless another rank reports within ``after`` seconds."""
    if watchdog is not None:
        wait_for_report(watchdog.rank_status, after)
        watchdog.report(text, code)
        return
    time.sleep(after)
    with contextlib.suppress(OSError):  # the reader may be gone
        say(text, sys.stderr)
