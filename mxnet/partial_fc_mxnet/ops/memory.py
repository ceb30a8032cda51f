"""The device of a rank, reusable buffers, and NumPy access to the memory of CPU arrays."""

import ctypes
from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call


def rank_context(local_rank: int) -> mx.Context:
    """Returns GPU ``local_rank`` if MXNet finds GPUs, otherwise the CPU.

    Raises:
        ValueError: this host has more ranks than GPUs.
    """
    gpus = mx.context.num_gpus()
    if gpus == 0:
        return mx.cpu()
    if local_rank >= gpus:
        raise ValueError(
            f"local rank {local_rank} has no GPU, MXNet finds {gpus} on this host: start at most {gpus} ranks here"
        )
    return mx.gpu(local_rank)


class Buffers:
    """Named arrays that are allocated once and replaced only if shape, dtype or context changes."""

    def __init__(self):
        self._arrays: dict[str, mx.nd.NDArray] = {}

    def get(self, context: mx.Context, name: str, shape: Sequence[int], dtype=np.float32) -> mx.nd.NDArray:
        """Returns the array ``name`` with its last content; a new array is zero."""
        array = self._arrays.get(name)
        shape = tuple(shape)
        if array is None or array.shape != shape or array.dtype != np.dtype(dtype) or array.context != context:
            array = self._arrays[name] = mx.nd.zeros(shape, ctx=context, dtype=dtype)
        return array

    def get_rows(self, context: mx.Context, name: str, rows: int, width: int) -> mx.nd.NDArray:
        """Returns rows (rows, width) of a float32 array that grows to the largest request."""
        array = self._arrays.get(name)
        if array is None or array.shape[0] < rows or array.shape[1] != width or array.context != context:
            array = self._arrays[name] = mx.nd.empty((rows, width), ctx=context)
        return array[:rows]


def host_array(values: np.ndarray) -> mx.nd.NDArray:
    """Copies ``values`` to a new CPU array; unlike mx.nd.array, does not wait for all queued operations."""
    array = mx.nd.empty(values.shape, mx.cpu(), values.dtype)
    memory_of(array)[...] = values
    return array


def host_view(array: mx.nd.NDArray) -> np.ndarray:
    """Returns the memory of a CPU array, see memory_of, or a copy of an array on another device."""
    if array.context.device_type != "cpu" or not array.shape[0]:  # an array without rows has no memory
        return array.asnumpy()
    return memory_of(array)


def memory_of(array: mx.nd.NDArray) -> np.ndarray:
    """Returns the memory of a CPU array as a NumPy array, after waiting for all operators that write to it.

    The NumPy array does not keep the memory alive, so the caller must keep a reference to ``array``. A caller that
    writes must make sure that no operator still reads, see wait_to_write.
    """
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    pointer = ctypes.cast(address, ctypes.POINTER(np.ctypeslib.as_ctypes_type(array.dtype)))
    return np.ctypeslib.as_array(pointer, array.shape)


def wait_to_write(array: mx.nd.NDArray) -> None:
    """Waits until no operator reads or writes ``array``, such as a pending copy to a GPU."""
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
