"""The arrays of a Module that is bound to one device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import mxnet as mx
import numpy as np

# multi_all_finite and multi_sum_sq take arrays of one type, and the former crashes the process at more than so many.
_ARRAYS = 200
_PIECE = 1 << 15


def parameters(module: mx.mod.Module) -> dict[str, mx.nd.NDArray]:
    """The parameters that its operators read, by name, on its device."""
    group = module._exec_group
    return {name: arrays[0] for name, arrays in zip(group.param_names, group.param_arrays)}


def statistics(module: mx.mod.Module) -> dict[str, mx.nd.NDArray]:
    """The running statistics, likewise, of all steps that have been begun."""
    settle()
    group = module._exec_group
    return {name: arrays[0] for name, arrays in zip(group.aux_names, group.aux_arrays)}


def export(module: mx.mod.Module) -> tuple[dict[str, mx.nd.NDArray], dict[str, mx.nd.NDArray]]:
    """Parameters and running statistics on the host, float32 whatever they are on the device."""
    settle()
    arg_params, aux_params = module.get_params()
    return _float32(arg_params), _float32(aux_params)


def settle() -> None:
    """Waits for all that was begun.

    oneDNN's BatchNorm changes the running statistics in its backward pass without telling MXNet's engine, so that
    whoever reads them waits for nothing, and mostly finds those of the step before.
    """
    mx.nd.waitall()


def _float32(params):
    return {name: array.astype(np.float32, copy=False) for name, array in params.items()}


def global_norm(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """(1,) float32 Euclidean norm of all arrays together, on their device; waits for nothing.

    In float32, as the squares of float16 numbers overflow from 256 on, and in pieces, as multi_sum_sq adds one square
    after the other, which makes the sum of ten million of them two hundredths too low.
    """
    flat = [array.astype(np.float32, copy=False).reshape((-1,)) for array in arrays]
    pieces = [array[start : start + _PIECE] for array in flat for start in range(0, array.size, _PIECE)]
    parts = [pieces[i : i + _ARRAYS] for i in range(0, len(pieces), _ARRAYS)]
    sums = [mx.nd.multi_sum_sq(*part, num_arrays=len(part)) for part in parts]
    return mx.nd.sqrt(mx.nd.sum(mx.nd.concat(*sums, dim=0)))


def all_finite(arrays: Sequence[mx.nd.NDArray]) -> bool:
    """Whether no array holds an infinity or a NaN; waits for all of them, once."""
    flag = mx.nd.ones((1,), ctx=arrays[0].context)
    alike = defaultdict(list)
    for array in arrays:
        # The operator goes through as many numbers for each array as the largest one has.
        alike[array.dtype, array.size.bit_length()].append(array)
    for group in alike.values():
        for i in range(0, len(group), _ARRAYS):
            some = group[i : i + _ARRAYS]
            mx.nd.multi_all_finite(*some, num_arrays=len(some), init_output=False, out=flag)
    return bool(flag.asscalar())
