"""Batches that worker processes read, for items whose Python code holds the interpreter's lock.

Each worker opens the set itself, receives positions over a socket, and answers with arrays. Copying a gigabyte through
the socket takes each side 0.2 s of processor time. Shared memory would take 0.15 s, but can leave files behind.
"""

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
    """The batches of one rank, see Batches in training_data.py, read by worker processes. Thread-safe.

    A batch depends on its position only, so any worker can read it; a worker that has opened a set with another `order`
    is refused. Processes are spawned, so they import the main program again, which must train under ``if __name__ ==
    "__main__"`` only. They ignore the signals that ask the rank to stop, and end with the rank, even if it is killed.

    Args:
        local: the batches as opened in this process.
        open_batches: opens the same batches in a worker; must be picklable.
        processes: number of workers, and of threads that can read at the same time.

    Attributes:
        local: as above.
        log: the log of `local`, which includes what the workers have read.

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
        # At exit, this must run before multiprocessing joins the workers, which wait for this process.
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
            raise OSError(describe_death(worker.process)) from None
        finally:
            self._free.put(worker)  # even if it is dead: other threads must not wait for it
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
        """Ends the workers; calls of `batch` that wait for one raise OSError. A second call does nothing."""
        self._stop()


class Worker(NamedTuple):
    """A worker process, and this process's end of the socket between them."""

    process: Any
    connection: Connection


class Answer(NamedTuple):
    """What a worker sends."""

    result: Any  # a Batch, or an error
    read: ReadCounters = ReadCounters()  # since the worker's last answer
    bad: dict[int, str] = {}  # noqa: RUF012  bad items since then, as in ReadLog


def start_worker(open_batches: Callable[[], Batches], order: dict) -> Worker:
    """Starts a worker. The caller has blocked signals."""
    context = get_context("spawn")
    connection, workers_end = context.Pipe()
    process = context.Process(target=serve, args=(workers_end, open_batches, order))
    process.start()
    workers_end.close()  # now the socket closes when the worker ends
    return Worker(process, connection)


def stop(workers: list[Worker]) -> None:
    """Ends workers.

    The sockets stay open, because other threads may be reading from them, and the number of a closed one can be reused.
    """
    deadline = time.monotonic() + END_WAIT
    for worker in workers:
        with socket.fromfd(worker.connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end, suppress(OSError):
            end.shutdown(socket.SHUT_WR)  # the worker receives EOF
    try:
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
    finally:  # also after Ctrl-C: Python would wait for the workers at exit, without a limit
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def describe_death(process: Any) -> str:
    """Describes how a process that has closed its socket has ended."""
    process.join(END_WAIT)
    code = process.exitcode
    how = "closed its socket"
    if code is not None:
        how = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
    if code == -signal.SIGKILL:
        how += " (out of memory?)"
    return f"process {process.pid}, which read batches, {how}; set a smaller decode_processes, or 0 for threads"


def serve(connection: Connection, open_batches: Callable[[], Batches], order: dict) -> None:
    """Answers positions with batches until the other end closes. The main function of a worker.

    If the set cannot be opened, every answer is the error.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a signal mask would not apply to threads that NumPy has started
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries loaded from here on: there is a worker per core
    opened = attempt(lambda: open_same(open_batches, order))
    is_open = not isinstance(opened, ExceptionWithTraceback)
    if is_open:
        opened.log.quiet = True  # the parent logs the bad items of all workers
    before, num_reported = used(ReadCounters()), 0
    while True:
        try:
            epoch, first = connection.recv()
            answer = Answer(opened)
            if is_open:
                result = attempt(partial(opened.batch, epoch, first))
                now, bad = used(opened.log.counters), dict(list(opened.log.bad.items())[num_reported:])
                answer = Answer(result, ReadCounters._make(map(sub, now, before)), bad)
                before, num_reported = now, num_reported + len(bad)
            send(connection, answer)
        except (EOFError, OSError):
            return


def used(counters: ReadCounters) -> ReadCounters:
    """Returns the counters with the processor time and disk bytes of this process, which the system has counted."""
    return counters._replace(cpu_seconds=time.process_time(), disk_bytes=disk_bytes() or 0)


def open_same(open_batches: Callable[[], Batches], order: dict) -> Batches:
    """Opens the batches. Raises ValueError if their order differs from the rank's."""
    opened = open_batches()
    if opened.order != order:
        raise ValueError(
            f"process {os.getpid()} has opened another set than its rank: {opened.order}, not {order}; the set must be "
            "the same in each process (sort items of a Python set or of a folder, and do not change its files), or set "
            "decode_processes=0"
        )
    return opened


def attempt(function: Callable[[], Any]) -> Any:
    """Returns the result, or the exception in a form that can be sent with its traceback."""
    try:
        return function()
    except Exception as error:  # including those of the user's code
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # a class whose __init__ takes other arguments than it passes to Exception
            error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        return ExceptionWithTraceback(error, error.__traceback__)


def send(connection: Connection, answer: Answer) -> None:
    """Sends an answer without copying its arrays in this process; if it cannot be pickled, sends the error."""
    buffers: list[memoryview] = []
    try:
        content = pickle.dumps(answer, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    except Exception as error:  # of any class of the user
        refusal = ValueError(
            f"a process cannot send the batch that it has read ({type(error).__name__}: {error}): read arrays, or set "
            "decode_processes=0"
        )
        content, buffers = pickle.dumps(Answer(ExceptionWithTraceback(refusal, error.__traceback__))), []
    connection.send((content, [buffer.nbytes for buffer in buffers]))
    for buffer in buffers:
        while buffer.nbytes:
            buffer = buffer[os.write(connection.fileno(), buffer) :]


def receive(connection: Connection) -> Answer:
    """Returns the next answer. Raises EOFError or OSError if the other end has closed."""
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
