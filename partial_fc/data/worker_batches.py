"""Batches that worker processes read, for items whose Python code holds the interpreter's lock.

A worker opens the set itself, gets positions over a socket, and answers with arrays, which the kernel copies twice:
0.2 s of the processor for a gigabyte on either side. Shared memory would take 0.15 s, and leaves files behind.
"""

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.util import Finalize
from operator import sub
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from partial_fc.utils.process_pool import end_with_parent, no_interrupt, safe_path
from partial_fc.utils.system_counters import disk_bytes

from .batch import Batch, Inputs
from .prefetch import END_WAIT
from .read_log import ReadCounters
from .training_data import Batches


class WorkerBatches:
    """The batches of one rank, see Batches in training_data.py, read in worker processes. Thread-safe.

    A batch depends on its position alone, so it does not matter which worker reads it: one that has opened a set with
    another `order` is refused. The processes are spawned: their program is imported again, and must train under ``if
    __name__ == "__main__"`` only. They ignore the signals that ask the rank to stop, and end with it, also if it is
    killed.

    Args:
        local: the batches as opened in this process.
        open_batches: opens the same ones in a worker; must be picklable.
        processes: number of workers; so many threads can read at once.

    Attributes:
        local: as above.
        log: that of `local`, with what the workers have read.

    Raises, in `batch`:
        OSError: a worker has died.
        ValueError: a worker has opened another set, or its batch cannot be sent.
    """

    def __init__(self, local: Batches, open_batches: Callable[[], Batches], processes: int):
        self.local, self.log = local, local.log
        self.num_images, self.batch_size, self.size = local.num_images, local.batch_size, local.size
        self._free: SimpleQueue[Worker] = SimpleQueue()
        with no_interrupt(), safe_path():
            workers = [start_worker(open_batches, local.order) for _ in range(processes)]
        # Before multiprocessing waits at exit for processes that wait for this one.
        self._stop = Finalize(self, stop, [workers], exitpriority=100)
        for worker in workers:
            self._free.put(worker)

    @property
    def digest(self) -> str:
        """See Batches."""
        return self.local.digest

    @property
    def order(self) -> dict:
        """See Batches."""
        return self.local.order

    def batch(self, epoch: int, first: int) -> Batch:
        """See Batches."""
        worker = self._free.get()
        try:
            worker.connection.send((epoch, first))
            answer = receive(worker.connection)
        except (EOFError, OSError):
            raise OSError(death(worker.process)) from None
        finally:
            self._free.put(worker)  # also a dead one: other threads shall not wait for it
        self.log.count(answer.read)
        for position, error in answer.bad.items():
            self.log.skip(position, error)
        if isinstance(answer.result, BaseException):
            raise answer.result
        return answer.result

    def sample(self, count: int) -> Inputs:
        """See Batches."""
        return self.local.sample(count)

    def check_labels(self, num_classes: int) -> None:
        """See Batches."""
        self.local.check_labels(num_classes)

    def close(self) -> None:
        """Ends the workers and closes the files; a second call does nothing."""
        self.end_workers()
        self.local.close()

    def end_workers(self) -> None:
        """Ends the workers, and with an error each call of `batch` that waits for one; a second call does nothing."""
        self._stop()


class Worker(NamedTuple):
    """A worker process, and this process's end of the socket between them."""

    process: Any
    connection: Connection


class Answer(NamedTuple):
    """What a worker sends."""

    result: Any  # a Batch, or an error
    read: ReadCounters = ReadCounters()  # since its last answer
    bad: dict[int, str] = {}  # noqa: RUF012  bad items since then, as in ReadLog


def start_worker(open_batches: Callable[[], Batches], order: dict) -> Worker:
    """Starts a worker; call it with signals blocked."""
    context = get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=serve, args=(other, open_batches, order))
    process.start()
    other.close()  # so that the end of the worker closes the socket
    return Worker(process, own)


def stop(workers: list[Worker]) -> None:
    """Ends workers. Their sockets stay open, as threads may read from them: a closed one's number is given again."""
    deadline = time.monotonic() + END_WAIT
    for worker in workers:
        with socket.fromfd(worker.connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as own, suppress(OSError):
            own.shutdown(socket.SHUT_WR)  # the worker reads the end
    try:
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
    finally:  # also after Ctrl-C: at exit, Python would wait for them without an end
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def death(process: Any) -> str:
    """Says how a process ended, which has closed its socket."""
    process.join(END_WAIT)
    code = process.exitcode
    how = "closed its socket"
    if code is not None:
        how = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
    if code == -signal.SIGKILL:
        how += " (out of memory?)"
    return f"process {process.pid}, which read batches, {how}; set a smaller decode_processes, or 0 for threads"


def serve(connection: Connection, open_batches: Callable[[], Batches], order: dict) -> None:
    """Answers positions with batches until the other end is closed: the program of a worker."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a mask would not hold for the threads that NumPy has started
    threading.Thread(target=end_with_parent, daemon=True).start()
    # Every worker has a core; libraries that it loads shall not start a thread for each of the host's.
    os.environ["OMP_NUM_THREADS"] = "1"
    answers = Reader(open_batches, order)
    while True:
        try:
            send(connection, answers(*connection.recv()))
        except (EOFError, OSError):
            return


class Reader:
    """Reads batches in a worker, and takes from the log what each has added.

    Args:
        open_batches: see WorkerBatches. If it fails, every answer is its error.
        order: of the batches that the rank has opened.
    """

    def __init__(self, open_batches: Callable[[], Batches], order: dict):
        self._opened = attempt(lambda: open_same(open_batches, order))
        self._before, self._reported = used(), 0
        if not isinstance(self._opened, ExceptionWithTraceback):
            self._opened.log.quiet = True  # the parent counts the bad items of all workers

    def __call__(self, epoch: int, first: int) -> Answer:
        """Returns the batch at a position."""
        opened = self._opened
        if isinstance(opened, ExceptionWithTraceback):
            return Answer(opened)
        result = attempt(lambda: opened.batch(epoch, first))
        log, now = opened.log, used(opened.log.counters)
        read, bad = ReadCounters._make(map(sub, now, self._before)), dict(list(log.bad.items())[self._reported :])
        self._before, self._reported = now, len(log.bad)
        return Answer(result, read, bad)


def used(counters: ReadCounters = ReadCounters()) -> ReadCounters:  # noqa: B008  it is immutable
    """Returns the counters of a worker with what the system has counted for it."""
    return counters._replace(cpu_seconds=time.process_time(), disk_bytes=disk_bytes() or 0)


def open_same(open_batches: Callable[[], Batches], order: dict) -> Batches:
    """Opens the batches. Raises ValueError if their order is not that of the rank's."""
    opened = open_batches()
    if opened.order != order:
        raise ValueError(
            f"process {os.getpid()} has opened another set than its rank: {opened.order}, not {order}; the set must be "
            "the same in each process (sort what comes from a set of Python or from a folder, and leave its files as "
            "they are), or set decode_processes=0"
        )
    return opened


def attempt(function: Callable[[], Any]) -> Any:
    """Returns the result, or the error in a form that can be sent with its traceback."""
    try:
        return function()
    except Exception as error:  # also those of the user's code
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error of the user's, whose arguments are not those of its class
            error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        return ExceptionWithTraceback(error, error.__traceback__)


def send(connection: Connection, answer: Answer) -> None:
    """Sends an answer, whose arrays are not copied in this process; if it cannot be pickled, the error."""
    packed = attempt(lambda: pack(answer))
    content, buffers = pack(Answer(packed)) if isinstance(packed, ExceptionWithTraceback) else packed
    connection.send((content, [buffer.nbytes for buffer in buffers]))
    for buffer in buffers:
        while buffer.nbytes:
            buffer = buffer[os.write(connection.fileno(), buffer) :]


def pack(answer: Answer) -> tuple[bytes, list[memoryview]]:
    """Returns an answer as pickle.loads takes it. Raises ValueError if it cannot be pickled."""
    buffers: list[memoryview] = []
    try:
        content = pickle.dumps(answer, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    except Exception as error:  # of any class of the user's
        raise ValueError(
            f"a process cannot send the batch that it has read ({type(error).__name__}: {error}): read arrays, or set "
            "decode_processes=0"
        ) from error
    return content, buffers


def receive(connection: Connection) -> Answer:
    """Returns the next answer. Raises EOFError or OSError if the other end is closed."""
    content, sizes = connection.recv()
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        rest = buffer.data
        while rest.nbytes:
            count = os.readv(connection.fileno(), [rest])
            if not count:
                raise EOFError
            rest = rest[count:]
    answer: Answer = pickle.loads(content, buffers=buffers)
    return answer
