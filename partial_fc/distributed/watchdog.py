"""A thread in each rank that goes on where the main thread cannot: signals, ranks that are lost, ranks that hang.

Python runs no signal handler while the main thread waits inside MPI, Gloo or MXNet, and none of these ends by itself
when another rank does not come. The sentinel ends the process, and one rank tells why.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn, TypeVar

from .diagnosis import (
    absent_sentence,
    gone_sentence,
    missing,
    silent_sentence,
    stalled_rank,
    still_sentence,
    unseen_sentence,
)
from .env import Place
from .heartbeat import HostWatch
from .rank_status import RankStatusStore, Record, has_ended, is_gone, is_stopped, job_key, process_state

Result = TypeVar("Result")

FAILED, REFUSED, PREEMPTED = 1, 2, 75  # exit codes; the last is EX_TEMPFAIL of sysexits.h
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
TICK = 0.2  # seconds between two looks
# Seconds that those who only wait leave to the rank that hangs: it can show where it stands.
PRECEDENCE = 2.0
GRACE = 60.0  # seconds from the request to stop, and from the last sign of life, until the process ends unsaved
QUIET = 5.0  # seconds without an answer after which a host is suspected when mpirun ends the job
BACK = 2.0  # seconds without an answer, below which a host that was silent is there again
AWAY = 0.5  # seconds that a rank of another host leaves to those of rank 0's; mpirun kills a second after TERM
BOARD = 2.0  # seconds for the notice board, whose disk may have gone with a host
LINGER = 60.0  # seconds for mpirun to find that a host is lost, see env.sh
START = 300.0  # seconds until all ranks have met; PARTIAL_FC_START_SECONDS sets another number
MPI_LAUNCHERS = ("mpirun", "orterun", "mpiexec", "orted", "prted", "prterun")


def block_signals() -> None:
    """Leaves the signals that ask this process to end to the watchdog.

    Threads inherit that, so it is called before any library makes one: NumPy does so when it is imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals() -> None:
    """Lets them end this process again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Watchdog(threading.Thread):
    """Watches over a rank. Make it in the main thread, some time after block_signals(), and start() it.

    Args:
        place: of this rank.
        root: of the notice board.
        environment: as the launcher has made it.

    Attributes:
        board: the notice board.
        patience: seconds without a sign of life after which the job ends; 0 for ever.
        host_patience: seconds without a byte from another host after which the job ends; 0 for ever.
        stop_requested: whether this rank was asked to save and end.
        num_update: the last update that was marked; -1 before training.
        telling: held by who tells how the job ends, until the process has ended.
    """

    def __init__(self, place: Place, root: str, environment: Mapping[str, str]):
        super().__init__(name="sentinel", daemon=True)
        self.place, self.board = place, RankStatusStore(root, job_key(environment, os.getpid()), place.rank)
        self.patience = self.host_patience = 0.0
        self.stop_requested = False
        self.telling = threading.RLock()
        self._start_limit = float(environment.get("PARTIAL_FC_START_SECONDS", START))
        self._under_mpi = _command(os.getppid())[:1] in [[name] for name in MPI_LAUNCHERS]
        self._launchers = _launchers() if place.size > 1 else []
        self._begun = self._looked = self._moved = time.monotonic()
        self._met = self._training = self._done = False
        self._asked_at = 0.0
        self.num_update, self._doing, self._waiting = -1, "its start", False
        self._peers: dict[int, Record] = {}  # of this host
        self._ended: set[int] = set()
        self._hosts: HostWatch | None = None
        self._host_of: list[str] = []
        self._main = threading.main_thread().ident
        self.mark()

    # Called by the main thread ----------------------------------------------------------------------

    def mark(self, doing: str | None = None, waiting: bool | None = None, num_update: int | None = None) -> None:
        """Notes a sign of life, and what has changed: a thing that is done, or waited in, and the last update."""
        self._moved = time.monotonic()
        self._doing = self._doing if doing is None else doing
        self._waiting = self._waiting if waiting is None else waiting
        self.num_update = self.num_update if num_update is None else num_update
        self.board.write(self.num_update, self._doing, self._waiting)

    def met(self) -> None:
        """All ranks have found each other."""
        self._met = True
        self.mark("preparations", waiting=False)

    def watch_hosts(self, hosts: HostWatch | None, host_of: list[str]) -> None:
        """From now on a host that falls silent ends the job.

        Args:
            hosts: of the first rank of each host; None for the others.
            host_of: the host of each rank.
        """
        self._hosts, self._host_of = hosts, host_of

    def training_begun(self) -> None:
        """From now on a request to stop is one to save first."""
        self._training = True

    @property
    def doing(self) -> tuple[str, bool]:
        """What the main thread does, and whether it waits there for other ranks."""
        return self._doing, self._waiting

    def stand_down(self) -> None:
        """Nothing is watched any more: this rank ends in step with all others."""
        self._done = True
        faulthandler.cancel_dump_traceback_later()

    def leave(self) -> None:
        """Takes this rank off the notice board: its process ends now."""
        if self._hosts is not None:
            self._hosts.say_goodbye()
        self.board.leave(self.num_update, self._doing)

    def lost(self) -> Record | None:
        """A rank of this host that is gone, though it has not ended or has told of an error, if there is one."""
        if len(self._peers) < self.place.local_size - 1:
            here = self.board.records(self.board.host)
            self._peers = {record.rank: record for record in here if record.rank != self.place.rank}
        for rank, record in self._peers.items():
            if rank not in self._ended and is_gone(record):
                last = {new.rank: new for new in self.board.records(self.board.host)}.get(rank, record)
                if not last.ended or self.board.told():
                    return last
                self._ended.add(rank)
        return None

    # The thread -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Looks around until the job has ended."""
        try:
            self._watch()
        except BaseException:
            traceback.print_exc()
            os._exit(FAILED)  # without its sentinel a rank could wait for ever

    def _watch(self) -> None:
        while not self._done:
            taken = signal.sigtimedwait(SIGNALS, TICK)
            if self._done:
                return
            now = time.monotonic()
            if now - self._looked > 10 * TICK + PRECEDENCE:
                self._moved = now  # the process itself was held for a while
                if self._hosts is not None:
                    self._hosts.reset_timers()
            self._looked = now
            self._arm()
            lost = self.lost()
            if lost is not None:
                self.end(gone_sentence(lost))
            if taken is not None:
                self._signalled(taken.si_signo)
            elif any(has_ended(*launcher) for launcher in self._launchers):
                self._ask_to_stop()
            self._check_hosts()
            self._check_moving(now)
            if not self._met and now - self._begun > self._start_limit:
                self.end(absent_sentence(self.board.records(), self.place.size, self._start_limit))
            # A large checkpoint may take longer, and whoever writes it shows signs of life.
            if self._asked_at and min(now - self._asked_at, self._still(now)) > GRACE:
                self.end(f"asked to stop {GRACE:.0f} s ago, but not at a step since: ends unsaved")

    def end(self, text: str, code: int = FAILED, trace: str = "", stopped: Sequence[int] = ()) -> NoReturn:
        """Ends the process; tells why, unless another rank or the main thread does.

        Args:
            text: why.
            code: exit code.
            trace: where the main thread is, to be told too.
            stopped: ranks that are held by SIGSTOP.
        """
        self.telling.acquire(timeout=5)
        if not self._done:
            if _within(BOARD, self.board.claim_error_report, True):
                with suppress(OSError):
                    print(f"error: {text}\n{trace}".rstrip(), file=sys.stderr, flush=True)
            for rank in stopped:
                # horovodrun asks it to end, which it cannot hear. mpirun wakes it up first.
                if rank in self._peers and not self._under_mpi:
                    with suppress(ProcessLookupError):  # another one has been faster
                        os.kill(self._peers[rank].pid, signal.SIGKILL)
            _within(BOARD, self.leave, None)
        os._exit(code)

    def _arm(self) -> None:
        # The last resort, for a main thread that never lets go of Python's lock, without which this one cannot run.
        if self.patience:
            faulthandler.dump_traceback_later(self.patience + 2 * PRECEDENCE, exit=True)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGTERM and self._under_mpi:
            # mpirun sends it when it has begun to end the job, and kills a second later.
            silent = self._hosts.silent(QUIET) if self._hosts is not None else []
            if self._away:
                # Its launcher may have lost the user's host, so that nobody would read what this rank says.
                time.sleep(AWAY)
            elsewhere = ", perhaps for another host, or for ssh's connection to it" if self._several else ""
            self.end(
                self._uncome()
                or (self._silence(silent, QUIET) if silent else "")
                or f"ended by mpirun (SIGTERM{elsewhere}); kill -USR1 asks it for a checkpoint first"
            )
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        if self.stop_requested:
            return
        if not self._training:
            uncome = self._uncome()
            code = FAILED if uncome or self.board.told() else PREEMPTED
            self.end(uncome or "asked to stop before training began: there is nothing to save", code)
        self.stop_requested, self._asked_at = True, time.monotonic()

    def _uncome(self) -> str:
        absent = [] if self._met else missing(self.board.records(), self.place.size)
        if not absent:
            return ""
        return f"the launcher ended the job before rank {absent[0]} of {self.place.size} came: it may have failed"

    def _still(self, now: float) -> float:
        """Seconds since this rank moved, or the one that it waits for."""
        blamed = stalled_rank(self.board.records())
        mine = now - self._moved
        return mine if blamed is None or blamed.rank == self.place.rank else min(mine, time.time() - blamed.moved)

    @property
    def _several(self) -> bool:
        return self.place.size > self.place.local_size

    @property
    def _away(self) -> bool:
        """This is another host than rank 0's."""
        return bool(self._host_of) and self._host_of[0] != self.board.host

    def _check_hosts(self) -> None:
        if self._hosts is None:
            return
        gone = self._hosts.gone()
        if gone:
            self._end_for_killed(gone[0])
        # Rank 0's words can be read by the user. An edge that is cut off must not be the one that tells.
        if self.host_patience:
            silent = self._hosts.silent(self.host_patience + (2 * PRECEDENCE if self._away else 0))
            if silent:
                self._end_for_silent(silent)

    def _end_for_killed(self, host: str) -> NoReturn:
        first = self._host_of.index(host)
        none: list[Record] = []
        records = {record.rank: record for record in _within(BOARD, lambda: self.board.records(), none)}
        self.end(gone_sentence(records[first]) if first in records else unseen_sentence(first, host))

    def _end_for_silent(self, hosts: Sequence[str]) -> NoReturn:
        text = self._silence(hosts, self.host_patience)
        if not self._under_mpi:
            self.end(text)
        # mpirun finds its daemon there lost by itself. When a rank ends before, it waits for that daemon's answer.
        with self.telling:
            if not self._done and _within(BOARD, self.board.claim_error_report, True):
                with suppress(OSError):
                    print(f"error: {text}", file=sys.stderr, flush=True)
            end = time.monotonic() + LINGER
            while time.monotonic() < end and self._hosts is not None and self._hosts.silent(BACK):
                if signal.sigtimedwait(SIGNALS, TICK) is not None:
                    break
            self.end(text)

    def _silence(self, hosts: Sequence[str], seconds: float) -> str:
        ranks = [rank for rank, host in enumerate(self._host_of) if host == hosts[0]]
        return silent_sentence(hosts, ranks, seconds, self.num_update)

    def _check_moving(self, now: float) -> None:
        if not self.patience or now - self._moved < self.patience:
            return
        records, clock = self.board.records(), time.time()
        blamed = stalled_rank(records)
        stopped = [record.rank for record in records if record.host == self.board.host and is_stopped(record)]
        if self._hosts is not None:
            stopped += [self._host_of.index(host) for host in self._hosts.held(QUIET)]
        if blamed is not None and blamed.rank == self.place.rank:
            frames = sys._current_frames().get(self._main or 0)
            trace = "".join(traceback.format_stack(frames)) if frames else ""
            self.end(still_sentence(records, self.place.size, clock, self.patience, stopped), trace=trace)
        # Whoever is waited for may be at work, on a large file perhaps, and say so.
        if self._still(now) > self.patience + PRECEDENCE:
            self.end(still_sentence(records, self.place.size, clock, self.patience, stopped), stopped=stopped)


def _launchers() -> list[tuple[int, int]]:
    """(process, start) of what has started this rank, and of what that belongs to: horovodrun's or run.sh's shell."""
    parent = os.getppid()
    found = [(parent, process_state(parent)[1])]
    above = _parent(parent)
    if any(word.endswith("run.sh") or "mpirun" in word for word in _command(above)):
        found.append((above, process_state(above)[1]))
    return found


def _within(seconds: float, work: Callable[[], Result], otherwise: Result) -> Result:
    """What a function returns, unless it takes longer."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise


def _command(pid: int) -> list[str]:
    """The words of a process's command line, the first without its folder."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            words = file.read().split("\0")
    except OSError:
        return []
    return [os.path.basename(words[0]), *words[1:]]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
