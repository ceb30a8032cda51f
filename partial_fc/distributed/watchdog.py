"""A thread in each rank that acts where the main thread cannot: signals, lost ranks, ranks that hang.

Python runs no signal handler while the main thread waits inside MPI, Gloo or MXNet, and none of these returns when
another rank does not take part. The watchdog ends the process, and one rank of the job reports why.
"""

import enum
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

from . import diagnosis, processes
from .env import RankInfo
from .errors import FAILED, PREEMPTED
from .heartbeat import Heartbeat
from .local_peers import LocalPeers
from .lock_watch import LockWatch
from .rank_record import Record, is_stopped, since_boot
from .rank_status import RankStatusStore
from .reporter import STORE_TIMEOUT, ErrorReporter, run_within
from .signals import wait_for_signal

TICK = 0.2  # seconds between two checks
# Seconds that a rank which only waits leaves to the rank that hangs: that one can show where.
PRECEDENCE = 2.0
GRACE = 60.0  # seconds from the stop request, and from the last progress, until the process exits without saving
SILENT = 5.0  # seconds without an answer after which a host is suspected when mpirun ends the job
RECOVERED = 2.0  # seconds without an answer, below which a host that was silent counts as connected again
# Seconds by which the ranks of other hosts let those of rank 0's host report first. mpirun kills after 1 s.
REMOTE_DELAY = 0.5
REPORT_TIMEOUT = 5.0  # seconds for the main thread to end the process, once it reports why
GRACE_PERIOD = 60.0  # seconds for mpirun to detect that a host is lost, see env.sh
START = 300.0  # seconds until all ranks have met, and for a phase of the setup; PARTIAL_FC_START_SECONDS overrides it


def start_limit(environment: Mapping[str, str]) -> float:
    """Seconds until all ranks have met, and for a phase before the first update."""
    return float(environment.get("PARTIAL_FC_START_SECONDS", START))


class State(enum.IntEnum):
    """The state of a rank. It only moves forward."""

    STARTING = 0  # until all ranks have met, which takes the start limit at most
    PREPARING = 1  # a stop request ends the process
    TRAINING = 2  # a stop request leads to STOPPING
    STOPPING = 3  # the main thread has GRACE seconds to save a checkpoint
    ENDING = 4  # the main thread ends the process by itself, and nothing is watched any more


class Watchdog(threading.Thread):
    """Watches over a rank. Make and start() it in the main thread, some time after block_signals().

    Attributes:
        timeout: seconds without progress after which the job ends, at least START before the first update; 0 for no
            limit.
        host_timeout: seconds without a byte from another host after which the job ends; 0 for no limit.
    """

    def __init__(self, ranks: RankInfo, root: str, environment: Mapping[str, str]):
        super().__init__(name="watchdog", daemon=True)
        self.ranks = ranks
        self.rank_status = RankStatusStore.of_job(root, environment, ranks.rank)
        self.reporter = ErrorReporter(self.rank_status)
        self.state = State.STARTING
        self.timeout = self.host_timeout = 0.0
        self._state_lock = threading.Lock()
        self._start_limit = start_limit(environment)
        self._under_mpi = processes.started_by_mpi()
        self._launchers = processes.launchers() if ranks.size > 1 else []
        self._started_at = self._checked_at = self._progress_at = self._requested_at = time.monotonic()
        self._peers = LocalPeers(self.rank_status, ranks.local_size)
        self._lock_watch = LockWatch()
        self._heartbeat: Heartbeat | None = None
        self._host_of: Sequence[str] = []

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

    def on_connected(self) -> None:
        """All ranks have met."""
        self._advance(State.PREPARING)
        self.mark("setup", waiting=False)

    def watch_hosts(self, heartbeat: Heartbeat | None, host_of: Sequence[str]) -> None:
        """From now on a host that falls silent ends the job: the first rank of each has a heartbeat."""
        self._heartbeat, self._host_of = heartbeat, host_of

    def training_begun(self) -> None:
        """From now on a stop request is left to the main thread, which saves a checkpoint first."""
        self._advance(State.TRAINING)

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to save a checkpoint and stop."""
        return self.state is State.STOPPING

    def stand_down(self) -> None:
        """Stops watching: the main thread ends this process by itself."""
        self._advance(State.ENDING)
        self.reporter.closed = True
        self._lock_watch.close()

    def leave(self) -> None:
        """Notifies the other ranks that this process ends now."""
        if self._heartbeat is not None:
            self._heartbeat.close()
        self.rank_status.leave()

    # The thread -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Checks the job until the main thread ends it."""
        try:
            while self.state is not State.ENDING:
                signal_number = wait_for_signal(TICK)
                if self.state is not State.ENDING:
                    self._check(signal_number, time.monotonic())
        except BaseException:
            traceback.print_exc()
            os._exit(FAILED)  # without its watchdog a rank could wait forever

    def end(self, text: str, code: int = FAILED, kill: Sequence[int] = (), grace_period: bool = False) -> NoReturn:
        """Ends the process, after reporting why unless the main thread or another rank does.

        Args:
            text: why.
            code: exit code, unless another rank has reported why the job ends: then its exit code.
            kill: ranks that are stopped by SIGSTOP. horovodrun sends them SIGTERM, which they cannot receive.
            grace_period: whether to wait until mpirun has detected the lost host.
        """
        if self.timeout:  # this thread postpones no more while it waits here
            self._lock_watch.postpone(max(self._limit, GRACE_PERIOD) + 10 * PRECEDENCE)
        self.reporter.report(f"error: {text}", code, REPORT_TIMEOUT)
        code = self.reporter.exit_code(code)
        if self.state is not State.ENDING:
            if grace_period:
                self._wait_grace_period()
            if not self._under_mpi:  # mpirun wakes them up first
                self._peers.kill(kill)
            run_within(STORE_TIMEOUT, self.leave, None)
        os._exit(code)

    def _advance(self, state: State) -> None:
        with self._state_lock:
            self.state = max(self.state, state)

    def _check(self, signal_number: int | None, now: float) -> None:
        if now - self._checked_at > 10 * TICK + PRECEDENCE:  # this process itself was stopped for a while
            self._progress_at = now
            if self._heartbeat is not None:
                self._heartbeat.reset_timers()
        self._checked_at = now
        if self.state is State.STARTING:
            self.rank_status.refresh()
        if self.timeout:
            self._lock_watch.postpone(self._limit + 2 * PRECEDENCE)
        lost = self._peers.find_lost()
        if lost is not None:
            self.end(diagnosis.exited_message(lost))
        if signal_number == signal.SIGTERM and self._under_mpi:
            self._end_for_mpirun()
        elif signal_number is not None or any(processes.has_ended(*launcher) for launcher in self._launchers):
            self._request_stop()
        self._check_hosts()
        self._check_progress(now)
        self._check_limits(now)

    def _check_limits(self, now: float) -> None:
        if self.state is State.STARTING and now - self._started_at > self._start_limit:
            records = self.rank_status.records()
            self.end(diagnosis.not_started_message(records, self.ranks.size, self._start_limit))
        # Writing a large checkpoint may take longer, but reports progress.
        if self.state is State.STOPPING and now - self._requested_at > GRACE:
            if self._idle_seconds(now, self.rank_status.records()) > GRACE:
                self.end(f"stop requested {GRACE:.0f} s ago, but no step has ended since: exits without saving")

    def _request_stop(self) -> None:
        if self.state >= State.STOPPING:
            return
        if self.state is State.TRAINING:
            self._requested_at = time.monotonic()
            self._advance(State.STOPPING)
            return
        failed_start = self._failed_start()
        self.end(
            failed_start or "stop requested before training began: there is nothing to save",
            FAILED if failed_start else PREEMPTED,
        )

    def _end_for_mpirun(self) -> NoReturn:
        """mpirun sends SIGTERM when it has begun to end the job, and SIGKILL a second later."""
        silent = self._heartbeat.silent(SILENT) if self._heartbeat is not None else []
        if self._is_away:
            # mpirun may have lost the user's host, so that nobody would read what this rank reports.
            time.sleep(REMOTE_DELAY)
        several_hosts = self.ranks.size > self.ranks.local_size
        elsewhere = ", perhaps because of another host or the ssh connection to it" if several_hosts else ""
        self.end(
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
        return bool(self._host_of) and self._host_of[0] != self.rank_status.host

    def _check_hosts(self) -> None:
        if self._heartbeat is None:
            return
        lost = self._heartbeat.lost()
        if lost:
            self.end(self._exited_message(self._host_of.index(lost[0])))
        if self.host_timeout:
            # The user can read what rank 0 reports; a client that is cut off must not be the one that reports.
            silent = self._heartbeat.silent(self.host_timeout + (2 * PRECEDENCE if self._is_away else 0))
            if silent:
                # A rank that ends before mpirun has noticed makes it wait for the answer of its daemon there.
                self.end(self._silent_message(silent, self.host_timeout), grace_period=self._under_mpi)

    def _exited_message(self, rank: int) -> str:
        none: list[Record] = []
        for record in run_within(STORE_TIMEOUT, self.rank_status.records, none):
            if record.rank == rank:
                return diagnosis.exited_message(record)
        return f"rank {rank} on {self._host_of[rank]} exited without reporting an error (killed?)"  # no record here

    def _silent_message(self, hosts: Sequence[str], seconds: float) -> str:
        ranks = [rank for rank, host in enumerate(self._host_of) if host == hosts[0]]
        return diagnosis.silent_message(hosts, ranks, seconds, self.rank_status.num_update)

    def _wait_grace_period(self) -> None:
        """Waits until mpirun ends this rank, or the silent host answers again; GRACE_PERIOD seconds at most."""
        end = time.monotonic() + GRACE_PERIOD
        while time.monotonic() < end and self._heartbeat is not None and self._heartbeat.silent(RECOVERED):
            if wait_for_signal(TICK) is not None:
                return

    # Ranks that hang --------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        """The timeout. The first update and what precedes it load libraries, and take longer than others."""
        return self.timeout if self.rank_status.num_update >= 0 else max(self.timeout, self._start_limit)

    def _check_progress(self, now: float) -> None:
        limit = self._limit
        if not self.timeout or now - self._progress_at < limit:
            return
        records = self.rank_status.records()
        stalled = diagnosis.stalled_rank(records)
        stalled_here = stalled is not None and stalled.rank == self.ranks.rank
        # The rank that the others wait for may be busy, with a large file for example, and report progress.
        if not stalled_here and self._idle_seconds(now, records) <= limit + PRECEDENCE:
            return
        stopped = [record.rank for record in records if self.rank_status.is_here(record) and is_stopped(record)]
        if self._heartbeat is not None:
            stopped += [self._host_of.index(host) for host in self._heartbeat.stopped(SILENT)]
        text = diagnosis.no_progress_message(records, self.ranks.size, since_boot(), limit, stopped)
        if stalled_here:
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            self.end(f"{text}\n{''.join(traceback.format_stack(frame)) if frame else ''}".rstrip())
        self.end(text, kill=stopped)

    def _idle_seconds(self, now: float, records: Sequence[Record]) -> float:
        """Seconds since this rank made progress, or the one that it waits for."""
        stalled = diagnosis.stalled_rank(records)
        own = now - self._progress_at
        if stalled is None or stalled.rank == self.ranks.rank:
            return own
        return min(own, since_boot() - stalled.progress_time)
