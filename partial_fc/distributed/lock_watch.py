"""Ends a process that never releases Python's lock, without which its watchdog cannot run: a process beside it does.

A timer within the process, such as that of faulthandler, counts the time for which all are suspended (docker pause, a
suspended job or virtual machine) and would end a training when it goes on. This one counts its own seconds.
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
SHOW = signal.SIGUSR2  # shows where the threads are
LIMIT = struct.Struct("d")


class LockWatch:
    """Watches over this process from the first `postpone` on, until `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._pipe = -1
        self._closed = False
        self._lock = threading.Lock()  # two threads call

    def postpone(self, seconds: float) -> None:
        """Ends this process unless the next call comes within so many seconds in which it is not suspended."""
        with self._lock:
            if self._closed:
                return
            if os.getpid() == 1:  # of a container: the kernel lets no process in it kill this one
                faulthandler.dump_traceback_later(seconds, exit=True, file=2)
                return
            try:
                if self._process is None:
                    self._start()
            except OSError:  # no process can be started: training goes on without this last resort
                self._closed = True
                return
            try:
                os.write(self._pipe, LIMIT.pack(seconds))
            except BlockingIOError:  # it is suspended
                pass
            except OSError:  # it was killed
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
        chain = signal.getsignal(SHOW) is not signal.SIG_DFL  # to a handler of the user's code
        faulthandler.register(SHOW, file=2, all_threads=True, chain=chain)
        # Without the user's environment and packages it starts in 20 ms, and finds no package, not even this one.
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
        read, self._pipe = os.pipe()
        try:
            os.set_blocking(self._pipe, False)  # the reader may be suspended, while the pipe fills up
            self._process = subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(read)


def watch(pid: int) -> None:
    """Watches over the parent of this process, which writes its limit to standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the ranks
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also where this process is suspended
    limit = waited = 0.0
    while os.getppid() == pid:
        if select.select([0], [], [], SECOND)[0]:
            received = os.read(0, 1 << 16)
            if not received:
                return
            (limit,), waited = LIMIT.unpack(received[-LIMIT.size :]), 0.0
        elif not _is_suspended(pid):
            waited += SECOND
        if limit and waited > limit:
            text = f"error: process {pid} did nothing for {waited:.0f} s and holds Python's lock; it ends. It is here:"
            with contextlib.suppress(OSError):  # the reader may be gone, the disk full
                os.write(2, f"{text}\n".encode())
            os.kill(pid, SHOW)
            if select.select([0], [], [], SECOND)[0]:  # it goes on after all, or has ended
                continue
            os.kill(pid, signal.SIGKILL)
            return


def _is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; processes.py cannot be imported here, see _start."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the process has ended
        watch(int(sys.argv[1]))
