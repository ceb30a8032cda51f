"""NumPy access to the memory of MXNet's CPU arrays."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call


def host_array(values: np.ndarray) -> mx.nd.NDArray:
    """Returns ``values`` as a CPU array, without mx.nd.array's wait for all operations that the engine has queued."""
    array = mx.nd.empty(values.shape, mx.cpu(), values.dtype)
    memory_of(array)[...] = values
    return array


def host_view(array: mx.nd.NDArray) -> np.ndarray:
    """Returns the memory of a CPU array, see memory_of, or a copy of an array of another device."""
    if array.context.device_type != "cpu" or not array.shape[0]:  # an array without rows has no memory
        return array.asnumpy()
    return memory_of(array)


def memory_of(array: mx.nd.NDArray) -> np.ndarray:
    """Returns the memory of a CPU array as a NumPy array, after waiting for all operators that write to it.

    The NumPy array does not keep the memory alive, so the caller has to hold ``array``. A caller that writes has to
    make sure that no operator still reads, see wait_to_write.
    """
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    pointer = ctypes.cast(address, ctypes.POINTER(np.ctypeslib.as_ctypes_type(array.dtype)))
    return np.ctypeslib.as_array(pointer, array.shape)


def wait_to_write(array: mx.nd.NDArray) -> None:
    """Waits until no operator reads or writes ``array``, such as a pending copy to a GPU."""
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
