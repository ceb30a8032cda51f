"""Decides when, why and how a rank ends. Everything that ends a job passes through this file.

Python runs no signal handler while the main thread waits inside MPI, Gloo, NCCL or MXNet, and none of these returns
when another rank does not take part. So a thread in each rank, the watchdog, watches its job:

    STARTING ---all ranks have met---> PREPARING ---first update begins---> TRAINING ---asked to stop---> STOPPING
        |                                  |                                   |                             |
        +---------------- the watchdog or the main thread finds a reason to end (table) ---------------------+
                                                         |
                              ENDING: reported once by one rank, whose exit code all ranks take

    event                                    noticed by                              exit code
    a rank of this host was killed           its process, RankStatusStore            1
    a rank of another host was killed        its connection, Heartbeat               1
    a host or its link is lost               no answer for host_timeout, Heartbeat   1; mpirun: 205
    mpirun ends the job                      SIGTERM under mpirun                    1
    asked to stop: SIGTERM, SIGUSR1, or      wait_for_signal, has_ended              75, once a checkpoint is saved;
      the launcher was killed                                                        75 at once before TRAINING
    no checkpoint after a request to stop    GRACE seconds without progress          1
    a rank hangs, is stopped, or waits       no progress for step_timeout            1
      in another collective
    not all ranks have met                   the start limit                         1
    a rank holds Python's lock               LockWatch, a process beside this one    137, or 1 from another rank
    an error, Ctrl-C, a saved training       the main thread, run_rank               1, or 2 before TRAINING; 130; 75
    refused before the ranks met             the main thread, refuse                 2

Either thread calls report() and exit(); the one that comes first ends the process while the other one waits.
"""

import contextlib
import enum
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from partial_fc.utils.text import say

from . import diagnosis, processes
from .env import RankInfo
from .errors import FAILED, PREEMPTED, REFUSED
from .heartbeat import Heartbeat
from .lock_watch import LockWatch
from .processes import since_boot
from .rank_status import RankStatusStore, Record
from .signals import release_signals, wait_for_signal

TICK = 0.2  # seconds between two checks
# Seconds that a rank which only waits leaves to the rank that hangs: that one can show where.
PRECEDENCE = 2.0
GRACE = 60.0  # seconds from the stop request, and from the last progress, until the process exits without saving
SILENT = 5.0  # seconds without an answer after which a host is suspected when mpirun ends the job
RECOVERED = 2.0  # seconds without an answer, below which a host that was silent counts as connected again
# Seconds by which the ranks of other hosts let those of rank 0's host report first. mpirun kills after 1 s.
REMOTE_DELAY = 0.5
REPORT_TIMEOUT = 5.0  # seconds for the main thread to end the process, once it reports why
STORE_TIMEOUT = 2.0  # seconds for the rank status store, whose disk may be lost together with a host
GRACE_PERIOD = 60.0  # seconds for mpirun to detect that a host is lost, see env.sh
START = 300.0  # seconds until all ranks have met, and for a phase of the setup; PARTIAL_FC_START_SECONDS overrides it
REFUSAL = 5.0  # seconds that a rank leaves to the one that reports a refusal

Result = TypeVar("Result")


def start_limit(environment: Mapping[str, str]) -> float:
    """Seconds until all ranks have met, and for a phase before the first update."""
    return float(environment.get("PARTIAL_FC_START_SECONDS", START))


class State(enum.IntEnum):
    """The state of a rank, see the diagram above. It only moves forward."""

    STARTING = 0
    PREPARING = 1
    TRAINING = 2
    STOPPING = 3
    ENDING = 4  # nothing is watched or reported any more


class Ending(NamedTuple):
    """Why and how a rank ends."""

    reason: str
    code: int = FAILED
    # Ranks that SIGSTOP has stopped: horovodrun and torchrun send them SIGTERM, which they cannot receive.
    stopped: Sequence[int] = ()
    # A rank that ends before mpirun has noticed a lost host makes it wait for the answer of its daemon there.
    awaits_mpirun: bool = False


class Watchdog(threading.Thread):
    """Watches over a rank. Make and start() it in the main thread, some time after block_signals().

    Attributes:
        timeout: seconds without progress after which the job ends, at least START before the first update; 0 for no
            limit.
        host_timeout: seconds without a byte from another host after which the job ends; 0 for no limit.
        host_of: the host of each rank, once they have met in a job of several hosts.
        heartbeat: of the first rank of each of these hosts; None on all others.
    """

    def __init__(self, ranks: RankInfo, root: str, environment: Mapping[str, str]):
        super().__init__(name="watchdog", daemon=True)
        self.ranks = ranks
        self.rank_status = RankStatusStore.of_job(root, environment, ranks.rank)
        self.state = State.STARTING
        self.timeout = self.host_timeout = 0.0
        self._state_lock = threading.Lock()
        self._report_lock = threading.RLock()  # acquired by the thread that ends the process, never released
        self._start_limit = start_limit(environment)
        self._under_mpi = processes.started_by_mpi()
        self._launchers = processes.launchers() if ranks.size > 1 else []
        self._started_at = self._checked_at = self._progress_at = self._requested_at = time.monotonic()
        self._lock_watch = LockWatch()
        self.heartbeat: Heartbeat | None = None
        self.host_of: Sequence[str] = []

    # Called by the main thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Opens the rank status store and starts the thread."""
        self.rank_status.open()
        self.mark()
        super().start()

    def mark(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Records progress, and what has changed in the status of this rank, see RankStatusStore.update."""
        self._progress_at = time.monotonic()
        self.rank_status.update(doing, waiting, num_update)

    def advance(self, state: State) -> None:
        """Moves on to a state, unless this rank is in a later one already."""
        with self._state_lock:
            self.state = max(self.state, state)

    def stand_down(self) -> None:
        """Stops watching: the main thread ends this process by itself."""
        self.advance(State.ENDING)
        self._lock_watch.close()

    def leave(self) -> None:
        """Notifies the other ranks that this process ends as it should, or after it has reported why."""
        if self.heartbeat is not None:
            self.heartbeat.close()
        self.rank_status.leave()

    # The end, called by either thread ----------------------------------------------------------------

    def report(self, text: str, code: int) -> None:
        """Prints why the job ends, unless it has been reported. The thread that calls it first also ends the process.

        ``code`` is the exit code of all ranks if this rank is the one that reports.
        """
        # The other thread waits here until the process ends; the watchdog not forever, as the main thread may hang.
        self._report_lock.acquire(timeout=REPORT_TIMEOUT if threading.current_thread() is self else -1)
        if self.state is State.ENDING or not _within(lambda: self.rank_status.claim_error_report(code), True):
            return
        with contextlib.suppress(OSError):  # the reader may be gone
            say(text, sys.stderr)

    def exit(self, code: int, abort: Callable[[int], None] = lambda code: None) -> NoReturn:
        """Ends this process with the exit code of the rank that has reported why the job ends, else with ``code``.

        ``abort`` ends the other ranks with an exit code, where the framework can do so.
        """
        code = _within(self.rank_status.reported_code, None) or code
        if self.state is not State.ENDING or threading.current_thread() is not self:  # else the main thread leaves
            self.advance(State.ENDING)
            _within(self.leave, None)
        abort(code)
        # Not sys.exit: the shutdown of Horovod waits for the other ranks, which may be waiting for this one.
        os._exit(code)

    # The thread -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Checks the job until the main thread ends it."""
        try:
            while self.state is not State.ENDING:
                signal_number = wait_for_signal(TICK)
                if self.state is State.ENDING:
                    return
                self._observe(time.monotonic())
                ending = self._decide(signal_number, time.monotonic())
                if ending is not None:
                    self._end(ending)
        except BaseException:
            traceback.print_exc()
            os._exit(FAILED)  # without its watchdog a rank could wait forever

    def _end(self, ending: Ending) -> NoReturn:
        if self.timeout:  # this thread postpones no more while it waits
            self._lock_watch.postpone(max(self._limit, GRACE_PERIOD) + 10 * PRECEDENCE)
        self.report(f"error: {ending.reason}", ending.code)
        if self.state is not State.ENDING:
            if ending.awaits_mpirun:
                self._wait_for_mpirun()
            if not self._under_mpi:  # mpirun wakes them up first
                self.rank_status.kill(ending.stopped)
        self.exit(ending.code)

    def _wait_for_mpirun(self) -> None:
        """Waits until mpirun ends this rank, or the silent host answers again; GRACE_PERIOD seconds at most."""
        end = time.monotonic() + GRACE_PERIOD
        while time.monotonic() < end and self.heartbeat is not None and self.heartbeat.silent(RECOVERED):
            if wait_for_signal(TICK) is not None:
                return

    def _observe(self, now: float) -> None:
        if now - self._checked_at > 10 * TICK + PRECEDENCE:  # this process itself was stopped for a while
            self._progress_at = now
            if self.heartbeat is not None:
                self.heartbeat.reset_timers()
        self._checked_at = now
        if self.state is State.STARTING:
            self.rank_status.refresh()
        if self.timeout:
            self._lock_watch.postpone(self._limit + 2 * PRECEDENCE)

    def _decide(self, signal_number: int | None, now: float) -> Ending | None:
        """Returns why this rank has to end now; None if it goes on. The events are those of the table above."""
        lost = self.rank_status.find_lost(self.ranks.local_size)
        if lost is not None:
            return Ending(diagnosis.exited_message(lost))
        if signal_number == signal.SIGTERM and self._under_mpi:
            return self._ended_by_mpirun()
        if signal_number is not None or any(processes.has_ended(*launcher) for launcher in self._launchers):
            if self.state is State.TRAINING:
                self._requested_at = now
                self.advance(State.STOPPING)
            elif self.state < State.TRAINING:
                failed_start = self._failed_start()
                reason = failed_start or "stop requested before training began: there is nothing to save"
                return Ending(reason, FAILED if failed_start else PREEMPTED)
        if self.state is State.STARTING and now - self._started_at > self._start_limit:
            records = self.rank_status.records()
            return Ending(diagnosis.not_started_message(records, self.ranks.size, self._start_limit))
        # Writing a large checkpoint may take longer, but reports progress.
        if self.state is State.STOPPING and now - self._requested_at > GRACE:
            if self._idle_seconds(now, self.rank_status.records()) > GRACE:
                return Ending(f"stop requested {GRACE:.0f} s ago, but no step has ended since: exits without saving")
        return self._lost_host() or self._no_progress(now)

    def _ended_by_mpirun(self) -> Ending:
        """mpirun sends SIGTERM when it has begun to end the job, and SIGKILL a second later."""
        silent = self.heartbeat.silent(SILENT) if self.heartbeat is not None else []
        if self._is_away:  # mpirun may have lost the user's host, so that nobody would read what this rank reports
            time.sleep(REMOTE_DELAY)
        several_hosts = self.ranks.size > self.ranks.local_size
        elsewhere = ", perhaps because of another host or the ssh connection to it" if several_hosts else ""
        return Ending(
            self._failed_start()
            or (self._silent_message(silent, SILENT) if silent else "")
            or f"ended by mpirun (SIGTERM{elsewhere}); to save a checkpoint first, send kill -USR1 to mpirun"
        )

    def _failed_start(self) -> str:
        """The error that a rank never started, if this is so; else ""."""
        started = self.state is not State.STARTING
        absent = [] if started else diagnosis.missing(self.rank_status.records(), self.ranks.size)
        if not absent:
            return ""
        return f"the launcher ended the job before rank {absent[0]} of {self.ranks.size} started: it may have failed"

    # Other hosts ------------------------------------------------------------------------------------

    @property
    def _is_away(self) -> bool:
        """Whether this is another host than rank 0's."""
        return bool(self.host_of) and self.host_of[0] != self.rank_status.host

    def _lost_host(self) -> Ending | None:
        if self.heartbeat is None:
            return None
        if lost := self.heartbeat.lost():
            rank, none = self.host_of.index(lost[0]), list[Record]()
            known = [record for record in _within(self.rank_status.records, none) if record.rank == rank]
            if known:
                return Ending(diagnosis.exited_message(known[0]))
            return Ending(f"rank {rank} on {lost[0]} exited without reporting an error (killed?)")
        # The user can read what rank 0 reports; a client that is cut off must not be the one that reports.
        limit = self.host_timeout + (2 * PRECEDENCE if self._is_away else 0)
        silent = self.heartbeat.silent(limit) if self.host_timeout else []
        if silent:
            return Ending(self._silent_message(silent, self.host_timeout), awaits_mpirun=self._under_mpi)
        return None

    def _silent_message(self, hosts: Sequence[str], seconds: float) -> str:
        return diagnosis.silent_message(hosts, self.host_of, seconds, self.rank_status.num_update)

    # Ranks that hang --------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        """The timeout. The first update and what precedes it load libraries, and take longer than others."""
        return self.timeout if self.rank_status.num_update >= 0 else max(self.timeout, self._start_limit)

    def _no_progress(self, now: float) -> Ending | None:
        limit = self._limit
        if not self.timeout or now - self._progress_at < limit:
            return None
        records = self.rank_status.records()
        stalled = diagnosis.stalled_rank(records)
        stalled_here = stalled is not None and stalled.rank == self.ranks.rank
        # The rank that the others wait for may be busy, with a large file for example, and report progress.
        if not stalled_here and self._idle_seconds(now, records) <= limit + PRECEDENCE:
            return None
        stopped = [record.rank for record in records if self.rank_status.is_stopped(record)]
        if self.heartbeat is not None:
            stopped += [self.host_of.index(host) for host in self.heartbeat.stopped(SILENT)]
        reason = diagnosis.no_progress_message(records, self.ranks.size, since_boot(), limit, stopped)
        if not stalled_here:
            return Ending(reason, stopped=stopped)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        return Ending(f"{reason}\n{''.join(traceback.format_stack(frame)) if frame else ''}".rstrip())

    def _idle_seconds(self, now: float, records: Sequence[Record]) -> float:
        """Seconds since this rank made progress, or the one that it waits for."""
        stalled = diagnosis.stalled_rank(records)
        own = now - self._progress_at
        if stalled is None or stalled.rank == self.ranks.rank:
            return own
        return min(own, since_boot() - stalled.progress_time)


def refuse(status: RankStatusStore, is_reporter: bool, message: str) -> NoReturn:
    """Exits this rank before the ranks have met; prints the message unless another rank has reported an error.

    Args:
        status: of this rank, open.
        is_reporter: whether this rank reports what all ranks of the job or of the host find.
        message: why the training is refused.
    """
    release_signals()
    if not is_reporter:
        # The reporter may be the slowest rank. If it reports nothing within this time, the error is not its own: the
        # config.py or a library of this rank's host differs.
        wait_for_report(status, REFUSAL)
    if status.claim_error_report(REFUSED):
        say(message, sys.stderr)
        time.sleep(0.3 if status.rank == 0 else 0)  # for the other ranks to see the claim
    status.leave()
    sys.exit(REFUSED)


def wait_for_report(status: RankStatusStore, seconds: float) -> None:
    """Waits until another rank reports why the job ends, for some seconds at most."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not status.error_reported():
        time.sleep(0.05)


def _within(function: Callable[[], Result], otherwise: Result) -> Result:
    """Returns the result of a function of the store, or ``otherwise`` if its disk does not answer."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(STORE_TIMEOUT)
    return results[0] if results else otherwise
