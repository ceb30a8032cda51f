"""Arrays of a Module that is bound to one device."""

from collections import defaultdict
from collections.abc import Sequence

import mxnet as mx
import numpy as np

# Arrays per call of multi_all_finite and multi_sum_sq; multi_all_finite crashes somewhere above.
_MAX_ARRAYS = 200
# Elements that multi_sum_sq adds up sequentially in float32.
_CHUNK = 1 << 15


def backbone(module) -> mx.mod.Module:
    """Returns the ``mx.mod.Module`` inside a SampleDistributeModule, or ``module`` itself if it is a Module.

    All other functions of this file accept both, so no caller needs the private attribute.
    """
    return getattr(module, "_module", module)


def parameter_names(module) -> list[str]:
    """Returns the names of the parameters in the order of the optimizer's indices."""
    return backbone(module)._exec_group.param_names


def parameters(module) -> dict[str, mx.nd.NDArray]:
    """Returns the parameters that the operators read, by name, on their device."""
    return _first_arrays(parameter_names(module), backbone(module)._exec_group.param_arrays)


def gradients(module) -> dict[str, mx.nd.NDArray]:
    """Returns the arrays to which the backward pass writes the gradients, by parameter name, on their device."""
    return _first_arrays(parameter_names(module), backbone(module)._exec_group.grad_arrays)


def statistics(module) -> dict[str, mx.nd.NDArray]:
    """Returns the running statistics by name, on their device, after waiting for all steps started so far."""
    settle()
    group = backbone(module)._exec_group
    return _first_arrays(group.aux_names, group.aux_arrays)


def export(module) -> tuple[dict[str, mx.nd.NDArray], dict[str, mx.nd.NDArray]]:
    """Returns (parameters, running statistics) on the host, as float32 whatever their dtype on the device."""
    settle()
    arg_params, aux_params = backbone(module).get_params()
    return _float32(arg_params), _float32(aux_params)


def settle() -> None:
    """Waits for all operations started so far.

    oneDNN's BatchNorm updates the running statistics in its backward pass without reporting the write to MXNet's
    engine. A read therefore does not wait for it, and usually returns the statistics of the previous step.
    """
    mx.nd.waitall()


def _first_arrays(names: Sequence[str], arrays) -> dict[str, mx.nd.NDArray]:
    return {name: copies[0] for name, copies in zip(names, arrays)}  # one copy, as there is one device


def _float32(params):
    return {name: array.astype(np.float32, copy=False) for name, array in params.items()}


def global_norm(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Returns the Euclidean norm of all arrays together, (1,) float32 on their device, without waiting.

    Computes the squares in float32, because float16 squares overflow from 256 on, and sums them in chunks, because
    multi_sum_sq adds sequentially, which makes a sum of ten million squares 2 % too low.
    """
    flat = [array.astype(np.float32, copy=False).reshape((-1,)) for array in arrays]
    chunks = [array[start : start + _CHUNK] for array in flat for start in range(0, array.size, _CHUNK)]
    groups = [chunks[i : i + _MAX_ARRAYS] for i in range(0, len(chunks), _MAX_ARRAYS)]
    sums = [mx.nd.multi_sum_sq(*group, num_arrays=len(group)) for group in groups]
    return mx.nd.sqrt(mx.nd.sum(mx.nd.concat(*sums, dim=0)))


def all_finite(arrays: Sequence[mx.nd.NDArray]) -> bool:
    """Returns whether no array contains an infinity or a NaN; waits once, for all arrays."""
    flag = mx.nd.ones((1,), ctx=arrays[0].context)
    # Group arrays of similar size: for each array, the operator runs as many iterations as the largest has elements.
    similar = defaultdict(list)
    for array in arrays:
        similar[array.dtype, array.size.bit_length()].append(array)
    for group in similar.values():
        for i in range(0, len(group), _MAX_ARRAYS):
            part = group[i : i + _MAX_ARRAYS]
            mx.nd.multi_all_finite(*part, num_arrays=len(part), init_output=False, out=flag)
    return bool(flag.asscalar())
