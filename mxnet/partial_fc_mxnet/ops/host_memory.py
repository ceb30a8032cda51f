"""The memory of MXNet's CPU arrays, for NumPy."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call


def host_array(values: np.ndarray) -> mx.nd.NDArray:
    """`values` as an NDArray on the CPU, at once: mx.nd.array first waits for all that the engine has been given."""
    array = mx.nd.empty(values.shape, mx.cpu(), values.dtype)
    memory_of(array)[...] = values
    return array


def host_view(array: mx.nd.NDArray) -> np.ndarray:
    """An array's numbers on the host: its memory itself where it is on the CPU, see memory_of, else a copy."""
    if array.context.device_type != "cpu" or not array.shape[0]:  # what has no rows has no memory
        return array.asnumpy()
    return memory_of(array)


def memory_of(array: mx.nd.NDArray) -> np.ndarray:
    """The memory of a CPU array as a NumPy array, once no operator is going to write to it any more.

    The NumPy array does not keep the memory alive: hold on to ``array``. Whoever writes to it sees to it that no
    operator still reads.
    """
    array.wait_to_read()
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    pointer = ctypes.cast(address, ctypes.POINTER(np.ctypeslib.as_ctypes_type(array.dtype)))
    return np.ctypeslib.as_array(pointer, array.shape)
