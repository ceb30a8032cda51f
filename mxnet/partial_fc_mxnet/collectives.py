"""The collectives of this process over Horovod."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.run_rank import run_rank

# Horovod's messages on the remaining ranks after one has exited.
CONNECTION_ERRORS = (
    "Horovod has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "gloo/transport",
)


def delay_abort(seconds: int) -> None:
    """Makes Open MPI wait this long before it aborts this process.

    Open MPI aborts a process as soon as its launcher has ended. The delay gives the watchdog time to notice the end of
    the launcher, and the main thread time to save.
    """
    with suppress(OSError, ValueError):  # another MPI, or none
        ctypes.c_int.in_dll(ctypes.CDLL("libopen-pal.so.40"), "opal_abort_delay").value = seconds


MXNET_ERROR = "MXNetError: "


def error_message(error: BaseException) -> str:
    """Returns the message of an error, without the stack trace or the arguments that MXNet puts before it."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror  # str(error) would put the number before the message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line.split(MXNET_ERROR, 1)[1] for line in lines if MXNET_ERROR in line]
    return (messages or lines or [repr(error)])[0]


class HorovodBackend:
    """Collectives of MXNet arrays through Horovod, see partial_fc.distributed.collectives.Backend for the methods."""

    error_message = staticmethod(error_message)
    user_errors = ()

    @property
    def rank(self) -> int:
        return hvd.rank()

    @property
    def size(self) -> int:
        return hvd.size()

    def gather_object(self, name: str, value: Any) -> list[Any]:
        return hvd.allgather_object(value, name=name)

    def max(self, name: str, value: float) -> float:
        return float(hvd.allreduce(mx.nd.array([value]), op=hvd.Max, name=name).asscalar())

    def barrier(self, name: str) -> None:
        hvd.allgather(mx.nd.zeros((1,)), name=name)

    def abort(self, code: int) -> None:
        if hvd.size() > 1 and hvd.mpi_enabled():
            from mpi4py import MPI  # imported here, because the import would start MPI in a job that runs over Gloo

            delay_abort(0)
            MPI.COMM_WORLD.Abort(code)

    def is_connection_error(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) and any(text in str(error) for text in CONNECTION_ERRORS)


default_collectives = Collectives(HorovodBackend())


def run(main: Callable[[], None]) -> None:
    """Runs the work of this rank, see partial_fc.distributed.run_rank.run_rank."""
    run_rank(default_collectives, main)
