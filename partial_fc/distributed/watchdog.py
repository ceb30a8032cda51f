"""Decides when, why and how a rank ends. Everything that ends a job goes through this file.

Python runs no signal handler while the main thread waits inside MPI, Gloo, NCCL or MXNet, and none of them returns
if another rank does not take part. So each rank has a watchdog, a thread that observes the job:

    STARTING ---ranks connected---> PREPARING ---first update begins---> TRAINING ---stop request---> STOPPING
        |                               |                                   |                            |
        +------------- the watchdog or the main thread finds a reason to end (table) --------------------+
                                                       |
                        ENDING: one rank reports the reason; all ranks exit with its code

    event                                    detected by                             exit code
    a rank on this host was killed           its process id, RankStatusStore         1
    a rank on another host was killed        its connection, Heartbeat               1
    a host or its link is down               host_timeout, Heartbeat                 1; 205 under mpirun
    mpirun ends the job                      SIGTERM under mpirun                    1
    stop request: SIGTERM, SIGUSR1, or       wait_for_signal, has_ended              75 after saving a checkpoint;
      the launcher was killed                                                        75 at once before TRAINING
    the first Ctrl-C of a training           interrupt, in the main thread           130 after saving a checkpoint
    no progress after a stop request         GRACE                                   1
    a rank hangs, is stopped, or waits       step_timeout                            1
      in a different collective
    some ranks do not start or connect       start_limit; longer while a rank        1
      makes its host's training set            shows progress
    a rank never releases the GIL            LockWatch, a separate process           137; 1 if another rank ends first
    an error, another Ctrl-C                 the main thread, run_rank               1, or 2 before TRAINING; 130
    an error before the ranks connect        the main thread, refuse                 2

Both threads call report() and exit(). The first one ends the process; the other one waits in report() meanwhile.
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

from partial_fc.utils.system_counters import bytes_moved_by_others
from partial_fc.utils.text import say

from . import diagnosis, processes
from .env import RankInfo
from .errors import FAILED, PREEMPTED, REFUSED
from .heartbeat import Heartbeat
from .lock_watch import LockWatch
from .processes import since_boot
from .rank_status import RankStatusStore, Record
from .signals import release_signals, wait_for_signal

# All times are in seconds.
TICK = 0.2  # between two checks
PRECEDENCE = 2.0  # waiting ranks report this much later, because the rank that hangs can show its stack
GRACE = 60.0  # without progress after a stop request, until the rank exits without saving
SILENT = 5.0  # without an answer from a host, until it is suspected when mpirun ends the job
RECOVERED = 2.0  # a silent host counts as connected again once its last answer is more recent than this
REMOTE_DELAY = 0.5  # ranks on other hosts report this much later than those on rank 0's; mpirun kills after 1 s
REPORT_TIMEOUT = 5.0  # for the main thread to end the process after its report
STORE_TIMEOUT = 2.0  # for the rank status store, whose disk may fail together with a host
MPIRUN_DETECTS = 60.0  # for mpirun to detect that a host is down, see env.sh
START_TIMEOUT = 300.0  # without progress until all ranks connect, and for each phase of the setup, see start_limit
CONNECT_TIMEOUT = 86400.0  # of the frameworks' own waits for other ranks, which the watchdog ends first
PREPARATION = "the preparation of the training set"  # what a rank does while others may wait longer than START_TIMEOUT
MOVED = 65536  # bytes that a rank reads or writes between two signs of progress of its preparation
REFUSAL = 5.0  # for the reporter of a refusal, before another rank reports it, and for ranks that start late

Result = TypeVar("Result")


def start_limit(environment: Mapping[str, str]) -> float:
    """Returns the seconds without progress until all ranks connect, and for each phase before the first update."""
    return float(environment.get("PARTIAL_FC_START_SECONDS", START_TIMEOUT))


class State(enum.IntEnum):
    """The state of a rank, as in the diagram above. It only moves forward."""

    STARTING = 0
    PREPARING = 1
    TRAINING = 2
    STOPPING = 3
    ENDING = 4  # the watchdog reports nothing anymore


class Ending(NamedTuple):
    """Why and how a rank ends."""

    reason: str
    code: int = FAILED
    # Ranks to kill, because SIGSTOP has stopped them: they never receive the SIGTERM of horovodrun or torchrun.
    stopped: Sequence[int] = ()
    # If a rank exits before mpirun itself detects a lost host, mpirun waits for its daemon on that host to answer.
    awaits_mpirun: bool = False


class Watchdog(threading.Thread):
    """Monitors one rank. Create and start it in the main thread, after block_signals().

    Attributes:
        timeout: seconds without progress until the job ends, at least start_limit() before the first update; 0
            disables the limit.
        host_timeout: seconds without an answer from another host until the job ends; 0 disables the limit.
        host_of: the host name of each rank, set when the ranks of several hosts have connected.
        heartbeat: the connection to other hosts, on the first rank of each host; None on all other ranks.
        interrupted: whether Ctrl-C has asked this rank to save and stop.
    """

    def __init__(self, ranks: RankInfo, root: str, environment: Mapping[str, str]):
        super().__init__(name="watchdog", daemon=True)
        self.ranks = ranks
        self.rank_status = RankStatusStore.of_job(root, environment, ranks.rank)
        self.state = State.STARTING
        self.timeout = self.host_timeout = 0.0
        self._state_lock = threading.Lock()
        self._report_lock = threading.RLock()  # the thread that ends the process acquires it and never releases it
        self._start_limit = start_limit(environment)
        self._under_mpi = processes.started_by_mpi()
        self._launchers = processes.launchers() if ranks.size > 1 else []
        self._start_progress_at = self._checked_at = self._progress_at = self._requested_at = time.monotonic()
        self._moved, self._preparing = 0, list[Record]()  # see _start_progress
        self._lock_watch = LockWatch()
        self.heartbeat: Heartbeat | None = None
        self.interrupted = False
        self.host_of: Sequence[str] = []

    # Called by the main thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Opens the rank status store and starts the thread."""
        self.rank_status.open()
        self.mark()
        super().start()

    def mark(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Records progress and the status of this rank, see RankStatusStore.update."""
        self._progress_at = time.monotonic()
        self.rank_status.update(doing, waiting, num_update)

    def advance(self, state: State) -> None:
        """Moves on to ``state``, unless this rank is in a later one already."""
        with self._state_lock:
            self.state = max(self.state, state)

    def interrupt(self, *_: object) -> None:
        """Handles Ctrl-C: the first one of a training asks to save and stop, any other ends the rank."""
        if self.state is not State.TRAINING or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True  # no more: this handler may interrupt code that holds the lock of `advance`

    def stand_down(self) -> None:
        """Stops the watchdog: the main thread ends this process itself."""
        self.advance(State.ENDING)
        self._lock_watch.close()

    def leave(self) -> None:
        """Notifies the other ranks that this process ends normally, or after a report."""
        if self.heartbeat is not None:
            self.heartbeat.close()
        self.rank_status.leave()

    # The end, called by either thread ----------------------------------------------------------------

    def report(self, text: str, code: int) -> None:
        """Prints why the job ends, unless another rank has done so. The calling thread must then end the process.

        Args:
            text: the message.
            code: the exit code of all ranks, if this rank is the one that reports.
        """
        # The thread that comes second waits here until the process ends. The main thread may hang after its report, so
        # the watchdog waits for a limited time.
        self._report_lock.acquire(timeout=REPORT_TIMEOUT if threading.current_thread() is self else -1)
        if self.state is State.ENDING or not _within(lambda: self.rank_status.claim_error_report(code), True):
            return
        with contextlib.suppress(OSError):  # the reader may be gone
            say(text, sys.stderr)

    def exit(self, code: int, abort: Callable[[int], None] = lambda code: None) -> NoReturn:
        """Ends this process with the exit code of the rank that has reported, or with ``code`` if none has.

        Args:
            code: the default exit code.
            abort: ends the other ranks with an exit code, if the framework can.
        """
        code = _within(self.rank_status.reported_code, None) or code
        # If the main thread is ending this process already, the watchdog leaves the goodbye to it.
        if self.state is not State.ENDING or threading.current_thread() is not self:
            self.advance(State.ENDING)
            _within(self.leave, None)
        abort(code)
        # Not sys.exit: it would run the shutdown of Horovod, which waits for ranks that may be waiting for this one.
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
            os._exit(FAILED)  # a rank without a watchdog could wait forever

    def _end(self, ending: Ending) -> NoReturn:
        if self.timeout:  # a last, longer extension: from here on this thread waits
            self._lock_watch.postpone(max(self._limit, MPIRUN_DETECTS) + 10 * PRECEDENCE)
        self.report(f"error: {ending.reason}", ending.code)
        if self.state is not State.ENDING:
            end = time.monotonic() + MPIRUN_DETECTS
            while ending.awaits_mpirun and time.monotonic() < end:
                recovered = self.heartbeat is None or not self.heartbeat.silent(RECOVERED)
                if recovered or wait_for_signal(TICK) is not None:  # the signal by which mpirun ends this rank
                    break
            if not self._under_mpi:  # mpirun continues stopped ranks before it ends them
                self.rank_status.kill(ending.stopped)
        self.exit(ending.code)

    def _observe(self, now: float) -> None:
        # After such a gap this process itself was stopped, perhaps together with the other ranks: restart the timers.
        if now - self._checked_at > 10 * TICK + PRECEDENCE:
            self._progress_at = now
            if self.heartbeat is not None:
                self.heartbeat.reset_timers()
        self._checked_at = now
        if self.state is State.STARTING:
            self.rank_status.refresh()
            if self._start_progress():
                self._start_progress_at = now
        if self.timeout:
            self._lock_watch.postpone(self._limit + 2 * PRECEDENCE)

    def _start_progress(self) -> bool:
        """Returns whether a training set is being made: drawn, downloaded, or indexed, in minutes or hours.

        The rank that makes it reads or writes. The others see that it runs, as it refreshes its record; it ends the job
        itself if it hangs, so two that hang do not wait for each other.
        """
        if self.rank_status.doing == PREPARATION:
            moved = bytes_moved_by_others()
            if moved - self._moved < MOVED:
                return False
            self._moved = moved
            return True
        preparing, self._preparing = (
            self._preparing,
            [record for record in self.rank_status.records() if record.doing == PREPARATION],
        )
        return self._preparing not in ([], preparing)

    def _decide(self, signal_number: int | None, now: float) -> Ending | None:
        """Returns why this rank has to end now, or None. The events are in the order of the table above."""
        lost = self.rank_status.find_lost(self.ranks.local_size)
        if lost is not None:
            return Ending(diagnosis.exited_message(lost))
        if signal_number == signal.SIGTERM and self._under_mpi:
            return self._ended_by_mpirun()
        launcher_ended = any(processes.has_ended(*launcher) for launcher in self._launchers)
        if signal_number is not None or self.interrupted or launcher_ended:
            if self.state is State.TRAINING:
                self._requested_at = now
                self.advance(State.STOPPING)
            elif self.state < State.TRAINING:
                failed_start = self._failed_start()
                reason = failed_start or "stop requested before training began: there is nothing to save"
                return Ending(reason, FAILED if failed_start else PREEMPTED)
        if self.state is State.STARTING and now - self._start_progress_at > self._start_limit:
            records = self.rank_status.records()
            return Ending(diagnosis.not_started_message(records, self.ranks.size, self._start_limit))
        # Saving a large checkpoint may take longer than GRACE, but reports progress.
        if self.state is State.STOPPING and now - self._requested_at > GRACE:
            if self._idle_seconds(now, self.rank_status.records()) > GRACE:
                return Ending(f"stop requested {GRACE:.0f} s ago, but no step has ended since: exits without saving")
        return self._lost_host() or self._no_progress(now)

    def _ended_by_mpirun(self) -> Ending:
        """Returns why mpirun ends the job; it sends SIGKILL 1 s after SIGTERM."""
        silent = self.heartbeat.silent(SILENT) if self.heartbeat is not None else []
        # The user's host may be the one that is lost. Then nobody reads the report of this rank.
        if self._is_remote:
            time.sleep(REMOTE_DELAY)
        several_hosts = self.ranks.size > self.ranks.local_size
        elsewhere = ", perhaps because of another host or the ssh connection to it" if several_hosts else ""
        reason = f"ended by mpirun (SIGTERM{elsewhere}); to save a checkpoint first, send kill -USR1 to mpirun"
        if self.state is State.STOPPING:
            reason = "ended by mpirun: nothing was saved since the last checkpoint"
        return Ending(self._failed_start() or (self._silent_message(silent, SILENT) if silent else "") or reason)

    def _failed_start(self) -> str:
        """Returns an error message if the job ends before all ranks have started, else ""."""
        started = self.state is not State.STARTING
        absent = [] if started else diagnosis.missing(self.rank_status.records(), self.ranks.size)
        if not absent:
            return ""
        return f"the launcher ended the job before rank {absent[0]} of {self.ranks.size} started: it may have failed"

    # Other hosts ------------------------------------------------------------------------------------

    @property
    def _is_remote(self) -> bool:
        """Whether rank 0 runs on another host."""
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
        # The user sees the output of rank 0's host, but not the report of a host that has lost its link to it.
        limit = self.host_timeout + (2 * PRECEDENCE if self._is_remote else 0)
        silent = self.heartbeat.silent(limit) if self.host_timeout else []
        if silent:
            return Ending(self._silent_message(silent, self.host_timeout), awaits_mpirun=self._under_mpi)
        return None

    def _silent_message(self, hosts: Sequence[str], seconds: float) -> str:
        return diagnosis.silent_message(hosts, self.host_of, seconds, self.rank_status.num_update)

    # Ranks that hang --------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        """Seconds without progress until the job ends: more until the first update, as the setup loads libraries."""
        return self.timeout if self.rank_status.num_update >= 0 else max(self.timeout, self._start_limit)

    def _no_progress(self, now: float) -> Ending | None:
        limit = self._limit
        if not self.timeout or now - self._progress_at < limit:
            return None
        records = self.rank_status.records()
        stalled = diagnosis.longest_idle(records)
        stalled_here = stalled is not None and stalled.rank == self.ranks.rank
        # This rank may wait for one that is busy, with a large file for example, but reports progress.
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
        """Seconds since the last progress of this rank or the rank it waits for, whichever is more recent."""
        stalled = diagnosis.longest_idle(records)
        idle = now - self._progress_at
        if stalled is None or stalled.rank == self.ranks.rank:
            return idle
        return min(idle, since_boot() - stalled.progress_time)


def refuse(status: RankStatusStore, is_reporter: bool, local_size: int, message: str) -> NoReturn:
    """Exits this rank before the ranks connect. Prints the message unless another rank has reported an error.

    Args:
        status: the open rank status store.
        is_reporter: whether this rank reports an error that all ranks of the job, or of its host, detect.
        local_size: number of ranks on this host.
        message: why the training is refused.
    """
    release_signals()
    status.update()
    if not is_reporter:
        # The reporter may be slower than this rank. If it reports nothing within this time, it does not have the
        # error: config.py or a library differs between the hosts.
        wait_for_report(status, REFUSAL)
    if status.claim_error_report(REFUSED):
        say(message, sys.stderr)
    # The last rank that leaves removes the report. This one does not leave if a rank has not started yet, which would
    # wait for the others to connect.
    if _wait_until(lambda: sum(record.host == status.host for record in status.records()) >= local_size, REFUSAL):
        time.sleep(0.3 if status.rank == 0 else 0)  # until the other ranks have seen the report
        status.leave()
    sys.exit(REFUSED)


def wait_for_report(status: RankStatusStore, seconds: float) -> None:
    """Waits until another rank reports why the job ends, at most ``seconds``."""
    _wait_until(status.error_reported, seconds)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds


def _within(function: Callable[[], Result], otherwise: Result) -> Result:
    """Returns the result of a function of the rank status store, or ``otherwise`` if its disk does not answer."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(STORE_TIMEOUT)
    return results[0] if results else otherwise
