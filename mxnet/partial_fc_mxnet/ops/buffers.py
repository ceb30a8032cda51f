"""Named arrays that are allocated once and reused in every step."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np


class Buffers:
    """One array per name, replaced only if its shape, dtype or context changes."""

    def __init__(self):
        self._arrays: dict[str, mx.nd.NDArray] = {}

    def get(self, context: mx.Context, name: str, shape: Sequence[int], dtype=np.float32) -> mx.nd.NDArray:
        """Returns the array with this name and its last content; initially zeros."""
        array = self._arrays.get(name)
        shape = tuple(shape)
        if array is None or array.shape != shape or array.dtype != np.dtype(dtype) or array.context != context:
            array = self._arrays[name] = mx.nd.zeros(shape, ctx=context, dtype=dtype)
        return array

    def get_rows(self, context: mx.Context, name: str, rows: int, width: int) -> mx.nd.NDArray:
        """Returns the first ``rows`` rows (rows, width) of a float32 array that grows to the largest request."""
        array = self._arrays.get(name)
        if array is None or array.shape[0] < rows or array.shape[1] != width or array.context != context:
            array = self._arrays[name] = mx.nd.empty((rows, width), ctx=context)
        return array[:rows]
