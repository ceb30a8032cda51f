"""What a step does to a tile of centers and logits, on the device where they are.

The same calls twice: on a CPU NumPy's loops over the memory of MXNet's arrays, which are up to 30 times faster there
than MXNet's operators (benchmarks/operators.py); on a GPU those operators. The products are MXNet's on both: on a CPU
oneDNN's FullyConnected, where ``dot`` and NumPy depend on what their OpenBLAS knows of the CPU.

Shapes: G global batch, T centers of a tile, E embedding. A "vector" is what the same arithmetic returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np

from .host_memory import memory_of

Vector = np.ndarray | mx.nd.NDArray

# Under the root of a squared norm, so that a zero row has a norm; the same as L2Normalization's.
NORM_EPSILON = 1e-10


def product(data: mx.nd.NDArray, weight: mx.nd.NDArray, gradients=None) -> mx.nd.NDArray:
    """Every row of data (G, E) times every row of weight (T, E): (G, T).

    Args:
        gradients: arrays like data and weight. ``backward`` of what is returned then adds to the first and overwrites
            the second. FullyConnected's own backward reads both in the layout they have, and nothing but autograd
            reaches it.
    """
    if gradients is None:
        return mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=weight.shape[0], flatten=False)
    mx.autograd.mark_variables([data, weight], list(gradients), ["add", "write"])
    with mx.autograd.record():
        return mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=weight.shape[0], flatten=False)


class HostArithmetic:
    """NumPy on the memory of MXNet's CPU arrays; vectors are NumPy arrays."""

    def take(self, array: mx.nd.NDArray, rows: np.ndarray, out: mx.nd.NDArray) -> mx.nd.NDArray:
        """Copies rows (T,) of array into out (T, E) and returns it."""
        np.take(memory_of(array), rows, axis=0, out=memory_of(out), mode="clip")
        return out

    def put(self, array: mx.nd.NDArray, rows: np.ndarray, values: mx.nd.NDArray) -> None:
        """Copies values (T, E) to the rows (T,) of array."""
        memory_of(array)[rows] = memory_of(values)

    def put_entries(self, logits: mx.nd.NDArray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Writes values to the given entries of logits."""
        memory_of(logits)[rows, columns] = values

    def inverse_norms(self, rows: mx.nd.NDArray) -> Vector:
        """1 / length of every row: (T,)."""
        memory = memory_of(rows)
        return 1 / np.sqrt(np.einsum("te,te->t", memory, memory) + np.float32(NORM_EPSILON))

    def dot_rows(self, left: mx.nd.NDArray, right: mx.nd.NDArray) -> Vector:
        """Product of each row with its counterpart: (T,)."""
        return np.einsum("te,te->t", memory_of(left), memory_of(right))

    def remove_component(self, gradient: mx.nd.NDArray, rows: mx.nd.NDArray, inverse_norm: Vector) -> None:
        """gradient -= (gradient . unit row) unit row, in place; unit row = inverse_norm * row."""
        along = self.dot_rows(gradient, rows) * np.square(inverse_norm)
        memory = memory_of(gradient)
        memory -= memory_of(rows) * along[:, None]

    def scale_columns(self, logits: mx.nd.NDArray, factors: Vector) -> None:
        """Multiplies each column of logits (G, T), in place."""
        memory = memory_of(logits)
        memory *= factors

    def scale_rows(self, array: mx.nd.NDArray, factors: Vector) -> None:
        """Multiplies each row, in place."""
        memory = memory_of(array)
        memory *= factors.astype(memory.dtype, copy=False)[:, None]

    def exponentiate(self, logits: mx.nd.NDArray) -> tuple[Vector, Vector]:
        """Replaces logits (G, T) by exp(logits - largest of the row): (largest (G,), sum of what there is now (G,))."""
        memory = memory_of(logits)
        largest = memory.max(axis=1)
        with np.errstate(invalid="ignore"):  # of infinite features; the loss will show it
            memory -= largest[:, None]
        np.exp(memory, out=memory)
        return largest, memory.sum(axis=1)

    def exp_minus(self, logits: mx.nd.NDArray, less: np.ndarray) -> None:
        """Replaces logits (G, T) by exp(logits - less (G,))."""
        memory = memory_of(logits)
        memory -= less.astype(memory.dtype)[:, None]
        np.exp(memory, out=memory)

    def to_host(self, vectors: Sequence[Vector]) -> np.ndarray:
        """n vectors of equal length as (n, length)."""
        return np.stack(vectors)

    def vector(self, values: np.ndarray) -> Vector:
        """A vector of these values, float32."""
        return values.astype(np.float32)


class DeviceArithmetic:
    """MXNet's operators; vectors are NDArrays. The calls are those of HostArithmetic."""

    def __init__(self, context: mx.Context):
        self.context = context

    def take(self, array, rows, out):
        return mx.nd.take(array, self._index(rows), out=out)

    def put(self, array, rows, values):
        array[self._index(rows)] = values

    def put_entries(self, logits, rows, columns, values):
        if len(rows):
            logits[self._index(rows), self._index(columns)] = self.vector(values)

    def inverse_norms(self, rows):
        return mx.nd.rsqrt(mx.nd.sum(mx.nd.square(rows), axis=1) + NORM_EPSILON)

    def dot_rows(self, left, right):
        return mx.nd.sum(left * right, axis=1)

    def remove_component(self, gradient, rows, inverse_norm):
        along = self.dot_rows(gradient, rows) * mx.nd.square(inverse_norm)
        gradient -= mx.nd.broadcast_mul(rows, along.reshape((-1, 1)))

    def scale_columns(self, logits, factors):
        mx.nd.broadcast_mul(logits, factors.reshape((1, -1)), out=logits)

    def scale_rows(self, array, factors):
        mx.nd.broadcast_mul(array, factors.reshape((-1, 1)), out=array)

    def exponentiate(self, logits):
        largest = mx.nd.max(logits, axis=1)
        mx.nd.broadcast_sub(logits, largest.reshape((-1, 1)), out=logits)
        mx.nd.exp(logits, out=logits)
        return largest, mx.nd.sum(logits, axis=1)

    def exp_minus(self, logits, less):
        mx.nd.broadcast_sub(logits, self.vector(less).reshape((-1, 1)), out=logits)
        mx.nd.exp(logits, out=logits)

    def to_host(self, vectors):
        return mx.nd.stack(*vectors).asnumpy()

    def vector(self, values):
        return mx.nd.array(values, ctx=self.context, dtype=np.float32)

    def _index(self, rows):
        return mx.nd.array(rows, ctx=self.context, dtype=np.int64)


def arithmetic_on(context: mx.Context) -> HostArithmetic | DeviceArithmetic:
    """The arithmetic for arrays of that context."""
    return HostArithmetic() if context.device_type == "cpu" else DeviceArithmetic(context)
