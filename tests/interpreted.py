"""Triton's interpreter, which runs the layer's kernels on the CPU, with the precision of tensor cores.

The interpreter itself multiplies float32 in full precision and takes the bits of bfloat16 for integers. Import this
module before Triton, which reads TRITON_INTERPRET when it is imported.
"""

import contextlib
import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

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


class Launch:
    """The memory of the arguments of a launch, and what its programs read and write there."""

    def __init__(self, kernel, tensors):
        first = sorted(tensors, key=lambda name: tensors[name].data_ptr())
        self.kernel, self.names, self.program = kernel, first, 0
        self.starts = np.array([tensors[name].data_ptr() for name in first], np.uint64)
        self.ends = self.starts + np.array([tensors[name].nbytes for name in first], np.uint64)
        self.accesses = {"reads": [], "writes": []}  # of (addresses, program of each)

    def access(self, kind, pointers, mask):
        """Notes an access of the current program, before it happens."""
        addresses = pointers.data[mask.data]
        nearest = np.maximum(np.searchsorted(self.starts, addresses, "right"), 1) - 1
        outside = (addresses < self.starts[nearest]) | (addresses >= self.ends[nearest])
        if outside.any():
            name = self.names[nearest[outside][0]]
            raise IndexError(f"{self.kernel} {kind} {outside.sum()} elements outside of {name}")
        self.accesses[kind].append((addresses, np.full(addresses.size, self.program)))

    def check(self):
        """Raises an error if a program reads or writes an element that another one writes: they have no order."""
        reads, writes = ([np.concatenate(part) for part in zip(*each)] for each in self.accesses.values())
        order = np.argsort(writes[0], kind="stable")
        written, writers = (part[order] for part in writes)
        shared = written[1:][(written[1:] == written[:-1]) & (writers[1:] != writers[:-1])]
        at = np.minimum(np.searchsorted(written, reads[0]), len(written) - 1)
        shared = np.concatenate([shared, reads[0][(written[at] == reads[0]) & (writers[at] != reads[1])]])
        if len(shared):
            name = self.names[np.searchsorted(self.starts, shared[0], "right") - 1]
            raise RuntimeError(f"programs of {self.kernel} share {len(np.unique(shared))} elements of {name}")


@contextlib.contextmanager
def any_order(seed):
    """A context that runs the programs of each launch in a random order, and checks their loads and stores.

    Raises:
        IndexError: A program accesses memory outside of the kernel's arguments, before it does.
        RuntimeError: A program accesses what another one writes.
    """
    random, launch, order = np.random.default_rng(seed), None, None
    run, set_size, set_index = GridExecutor.__call__, InterpreterBuilder.set_grid_dim, InterpreterBuilder.set_grid_idx
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def checked(executor, *arguments, **options):
        nonlocal launch
        given = {**dict(zip(executor.arg_names, arguments)), **options}
        launch = Launch(executor.fn.__name__, {name: each for name, each in given.items() if torch.is_tensor(each)})
        try:
            run(executor, *arguments, **options)
        except InterpreterError as error:
            while isinstance(error, InterpreterError):  # one for each function
                error = error.__cause__
            raise error from None
        launch.check()

    def set_grid_dim(builder, *size):
        nonlocal order
        order = zip(*np.unravel_index(random.permutation(np.prod(size)), size))
        set_size(builder, *size)

    def set_grid_idx(builder, *index):
        index = tuple(map(int, next(order)))
        launch.program = np.ravel_multi_index(index, builder.grid_dim)
        set_index(builder, *index)

    def create_masked_load(builder, pointers, mask, *more):
        launch.access("reads", pointers, mask)
        return load(builder, pointers, mask, *more)

    def create_masked_store(builder, pointers, value, mask, *more):
        launch.access("writes", pointers, mask)
        return store(builder, pointers, value, mask, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", checked)
        patch.setattr(InterpreterBuilder, "set_grid_dim", set_grid_dim)
        patch.setattr(InterpreterBuilder, "set_grid_idx", set_grid_idx)
        patch.setattr(InterpreterBuilder, "create_masked_load", create_masked_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", create_masked_store)
        yield


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
