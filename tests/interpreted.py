"""Triton's interpreter, which runs the layer's kernels on the CPU, with the precision of tensor cores.

The interpreter itself multiplies float32 in full precision and takes the bits of bfloat16 for integers. Import this
module before Triton, which reads TRITON_INTERPRET when it is imported.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from partial_fc_torch.layer.kernels.blocks import SMALLEST
from partial_fc_torch.layer.kernels.choice import FUSED
from partial_fc_torch.layer.kernels.triton_passes import TritonPasses


def float32_of(handle):
    """Returns a bfloat16 or float32 tile as a float32 array."""
    if handle.data.dtype == np.uint16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data


def tf32_of(values):
    """Drops the 13 bits that TF32 lacks, as hardware may do."""
    return (np.ascontiguousarray(values).view(np.uint32) & 0xFFFFE000).view(np.float32)


class Count:
    """A context that counts the kernels' floating point operations in products, and the bytes loaded and stored."""

    def __enter__(self):
        self.operations = self.bytes = 0
        self._originals = {name: getattr(InterpreterBuilder, name) for name in REPLACED}
        multiply, load, store = self._originals.values()

        def create_dot(builder, left, right, *more):
            self.operations += 2 * left.data.size * right.data.shape[1]
            return multiply(builder, left, right, *more)

        def create_masked_load(builder, pointers, mask, *more):
            loaded = load(builder, pointers, mask, *more)
            self.bytes += loaded.data.itemsize * int(mask.data.sum())
            return loaded

        def create_masked_store(builder, pointers, value, mask, *more):
            self.bytes += value.data.itemsize * int(mask.data.sum())
            return store(builder, pointers, value, mask, *more)

        for name, function in zip(REPLACED, (create_dot, create_masked_load, create_masked_store)):
            setattr(InterpreterBuilder, name, function)
        return self

    def __exit__(self, *error):
        for name, function in self._originals.items():
            setattr(InterpreterBuilder, name, function)


REPLACED = "create_dot", "create_masked_load", "create_masked_store"


def product(self, left, right, total, input_precision, max_num_imprecise_acc):
    factors = [float32_of(handle) for handle in (left, right)]
    if rounds_to_tf32 and left.data.dtype == np.float32:
        factors = map(tf32_of, factors)
    return TensorHandle(np.matmul(*factors) + total.data, total.dtype.scalar)


rounds_to_tf32 = False  # for tests of the bound
InterpreterBuilder.create_dot = product


def with_kernels(layer):
    """Returns the layer; if it has kernels, its first step does not compare them with PyTorch."""
    computation = layer._computation
    if computation.kernel in FUSED:
        passes = computation.loss, computation.of_torch.tile_classes, SMALLEST, FUSED[computation.kernel]
        computation.of_torch = TritonPasses(*passes, computation.unit_copy)
        computation.kernel = "torch"
    return layer
