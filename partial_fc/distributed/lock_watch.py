"""Kills a process that never releases Python's global lock (GIL). Its own watchdog thread cannot: it needs the lock.

So a small helper process watches it. The timer of faulthandler needs no lock either, but it keeps counting while the
job is suspended (docker pause, Slurm, a virtual machine) and would kill the training when it is resumed. The helper is
suspended with the job and counts only the seconds in which it runs.
"""

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import struct
import subprocess
import sys
import threading

SECOND = 1.0
REACTION = 5.0  # seconds for the process to go on after SHOW_STACKS interrupted it; a busy machine needs more than one
SHOW_STACKS = signal.SIGUSR2  # prints the stacks of all threads
LIMIT_FORMAT = struct.Struct("d")  # a time limit in seconds, in the pipe to the helper


class LockWatch:
    """Watches this process from the first postpone() until close()."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._pipe = -1
        self._closed = False
        self._lock = threading.Lock()  # the main thread closes, the watchdog thread postpones

    def postpone(self, seconds: float) -> None:
        """Kills this process after ``seconds`` unless called again; time while it is suspended does not count."""
        with self._lock:
            if self._closed:
                return
            if os.getpid() == 1:  # in a container, the kernel lets no other process kill process 1
                faulthandler.dump_traceback_later(seconds, exit=True, file=2)
                return
            try:
                if self._process is None:
                    self._start()
                os.write(self._pipe, LIMIT_FORMAT.pack(seconds))
            except BlockingIOError:  # the pipe is full, because the helper is suspended; or no process can be started
                self._closed = self._process is None
            except OSError:  # the helper was killed: training goes on without this last resort
                self._closed = True

    def close(self) -> None:
        """Stops watching."""
        with self._lock:
            self._closed = True
            if os.getpid() == 1:
                faulthandler.cancel_dump_traceback_later()
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        chain = signal.getsignal(SHOW_STACKS) is not signal.SIG_DFL  # the user's code may have a handler of its own
        faulthandler.register(SHOW_STACKS, file=2, all_threads=True, chain=chain)
        # -I -S skips the user's environment and all packages. Python starts in 20 ms, but cannot import partial_fc.
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
        read, self._pipe = os.pipe()
        try:
            os.set_blocking(self._pipe, False)  # the pipe fills up if the helper is suspended
            self._process = subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(read)


def watch(pid: int) -> None:
    """Watches the parent process ``pid``, which writes its time limit to this process's standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the ranks
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with the parent, even while suspended
    limit = waited = 0.0
    while os.getppid() == pid:
        if select.select([0], [], [], SECOND)[0]:
            received = os.read(0, 1 << 16)
            if not received:
                return
            (limit,), waited = LIMIT_FORMAT.unpack(received[-LIMIT_FORMAT.size :]), 0.0
        elif not _is_suspended(pid):
            waited += SECOND
        if limit and waited > limit:
            text = f"error: process {pid} has held Python's lock for {waited:.0f} s and is killed. Its threads:"
            with contextlib.suppress(OSError):  # the reader may be gone, or the disk full
                os.write(2, f"{text}\n".encode())
            os.kill(pid, SHOW_STACKS)
            if select.select([0], [], [], REACTION)[0]:  # the parent continues after all, or has ended
                continue
            os.kill(pid, signal.SIGKILL)
            return


def _is_suspended(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped a process. See _start for why this is not in processes.py."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the process has ended
        watch(int(sys.argv[1]))
