"""The operations of a step on a tile of centers and logits, on the device that holds them.

There are two implementations with the same methods. On a CPU, NumPy works on the memory of MXNet's arrays, up to 30
times faster than MXNet's operators (docs/layer.md); on a GPU, MXNet's operators compute. Both use MXNet's
FullyConnected for matrix products: on a CPU it calls oneDNN, whereas the speed of ``dot`` and NumPy depends
on how well their OpenBLAS supports the CPU.

Shapes: G global batch, T centers of a tile, E embedding. A ``Vector`` argument must come from the same implementation.
"""

from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx
import numpy as np

from .memory import memory_of, wait_to_write

Vector: TypeAlias = np.ndarray | mx.nd.NDArray

# Added to squared norms, so that a zero row has a finite inverse norm; L2Normalization uses the same value.
NORM_EPSILON = 1e-10


def product(data: mx.nd.NDArray, weight: mx.nd.NDArray, gradients=None) -> mx.nd.NDArray:
    """Returns data (G, E) times the transpose of weight (T, E): (G, T).

    With ``gradients``, two arrays with the shapes of data and weight, autograd records the product, and its
    ``backward`` adds to the first array and overwrites the second. FullyConnected's backward operator needs no
    transposed copies of its inputs, but only autograd can call it.
    """
    if gradients is None:
        return mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=weight.shape[0], flatten=False)
    mx.autograd.mark_variables([data, weight], list(gradients), ["add", "write"])
    with mx.autograd.record():
        return mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=weight.shape[0], flatten=False)


class HostArithmetic:
    """NumPy on the memory of MXNet's CPU arrays. Vectors are NumPy arrays."""

    def gather(self, array: mx.nd.NDArray, rows: np.ndarray, out: mx.nd.NDArray) -> mx.nd.NDArray:
        """Copies rows (T,) of array to out (T, E), and returns out."""
        wait_to_write(out)  # a pending operator, such as a copy to a GPU, may still read the previous tile's rows
        np.take(memory_of(array), rows, axis=0, out=memory_of(out), mode="clip")
        return out

    def scatter(self, array: mx.nd.NDArray, rows: np.ndarray, values: mx.nd.NDArray) -> None:
        """Copies values (T, E) to the rows (T,) of array."""
        memory_of(array)[rows] = memory_of(values)

    def scatter_entries(self, logits: mx.nd.NDArray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Writes values (n,) to the entries (rows[i], columns[i]) of logits."""
        memory_of(logits)[rows, columns] = values

    def replace_above(self, logits: mx.nd.NDArray, highest: float, value: float) -> None:
        """Replaces the entries of logits (G, T) above ``highest`` by ``value``, in place."""
        memory = memory_of(logits)
        memory[memory > highest] = value

    def add_to_columns(self, logits: mx.nd.NDArray, summands: np.ndarray) -> None:
        """Adds summands (T,) to the columns of logits (G, T), in place."""
        memory = memory_of(logits)
        memory += summands.astype(memory.dtype)

    def inverse_norms(self, rows: mx.nd.NDArray) -> Vector:
        """Returns 1 / Euclidean norm of every row: (T,)."""
        memory = memory_of(rows)
        return 1 / np.sqrt(np.einsum("te,te->t", memory, memory) + np.float32(NORM_EPSILON))

    def dot_rows(self, left: mx.nd.NDArray, right: mx.nd.NDArray) -> Vector:
        """Returns the dot product of each row of left with the same row of right: (T,)."""
        return np.einsum("te,te->t", memory_of(left), memory_of(right))

    def remove_component(self, gradient: mx.nd.NDArray, rows: mx.nd.NDArray, inverse_norm: Vector) -> None:
        """gradient -= (gradient . w) w for each row, in place, with w = inverse_norm * row."""
        along = self.dot_rows(gradient, rows) * np.square(inverse_norm)
        memory = memory_of(gradient)
        memory -= memory_of(rows) * along[:, None]

    def scale_columns(self, logits: mx.nd.NDArray, factors: Vector) -> None:
        """Multiplies the columns of logits (G, T) by factors (T,), in place."""
        memory = memory_of(logits)
        memory *= factors

    def scale_rows(self, array: mx.nd.NDArray, factors: Vector) -> None:
        """Multiplies each row by its factor, in place."""
        memory = memory_of(array)
        memory *= factors.astype(memory.dtype, copy=False)[:, None]

    def exponentiate(self, logits: mx.nd.NDArray) -> tuple[Vector, Vector]:
        """Replaces logits (G, T) by exp(logits - row maximum); returns (row maxima (G,), row sums (G,))."""
        memory = memory_of(logits)
        maximum = memory.max(axis=1)
        with np.errstate(invalid="ignore"):  # infinite features give inf - inf; the check of the loss reports them
            memory -= maximum[:, None]
        np.exp(memory, out=memory)
        return maximum, memory.sum(axis=1)

    def exp_minus(self, logits: mx.nd.NDArray, shift: np.ndarray) -> None:
        """Replaces logits (G, T) by exp(logits - shift), with shift (G,)."""
        memory = memory_of(logits)
        memory -= shift.astype(memory.dtype)[:, None]
        np.exp(memory, out=memory)

    def to_host(self, vectors: Sequence[Vector]) -> np.ndarray:
        """Stacks n vectors of equal length: (n, length)."""
        return np.stack(vectors)

    def vector(self, values: np.ndarray) -> Vector:
        """Converts values to a float32 vector."""
        return values.astype(np.float32)


class DeviceArithmetic:
    """MXNet's operators. Vectors are NDArrays. See HostArithmetic for the methods."""

    def __init__(self, context: mx.Context):
        self.context = context

    def gather(self, array, rows, out):
        return mx.nd.take(array, self._index(rows), out=out)

    def scatter(self, array, rows, values):
        array[self._index(rows)] = values

    def scatter_entries(self, logits, rows, columns, values):
        if len(rows):
            logits[self._index(rows), self._index(columns)] = self.vector(values)

    def replace_above(self, logits, highest, value):
        mx.nd.where(logits > highest, mx.nd.full(logits.shape, value, ctx=self.context), logits, out=logits)

    def add_to_columns(self, logits, summands):
        mx.nd.broadcast_add(logits, self.vector(summands).reshape((1, -1)), out=logits)

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
        maximum = mx.nd.max(logits, axis=1)
        mx.nd.broadcast_sub(logits, maximum.reshape((-1, 1)), out=logits)
        mx.nd.exp(logits, out=logits)
        return maximum, mx.nd.sum(logits, axis=1)

    def exp_minus(self, logits, shift):
        mx.nd.broadcast_sub(logits, self.vector(shift).reshape((-1, 1)), out=logits)
        mx.nd.exp(logits, out=logits)

    def to_host(self, vectors):
        return mx.nd.stack(*vectors).asnumpy()

    def vector(self, values):
        return mx.nd.array(values, ctx=self.context, dtype=np.float32)

    def _index(self, rows):
        return mx.nd.array(rows, ctx=self.context, dtype=np.int64)


def arithmetic_on(context: mx.Context) -> HostArithmetic | DeviceArithmetic:
    """Returns the implementation for arrays of a context."""
    return HostArithmetic() if context.device_type == "cpu" else DeviceArithmetic(context)
