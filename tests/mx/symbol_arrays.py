"""Shapes, random weights and embeddings of a symbol.

Shapes: N images, E embedding.
"""

import mxnet as mx
import numpy as np

from drawn_weights import draw_weights


def shapes_of(symbol, size=112):
    """Returns the shapes of (parameters, statistics) by name, without the input."""
    arguments, _, statistics = symbol.infer_shape(data=(2, 3, size, size))
    parameters = dict(zip(symbol.list_arguments(), arguments))
    del parameters["data"]
    return parameters, dict(zip(symbol.list_auxiliary_states(), statistics))


def random_parameters(symbol, size=112):
    """Returns (arg_params, aux_params), see drawn_weights.py."""
    drawn = map(draw_weights, shapes_of(symbol, size))
    return [{name: mx.nd.array(array) for name, array in arrays.items()} for arrays in drawn]


def embed(symbol, arg_params, aux_params, faces):
    """Returns MXNet's embeddings (N, E) of faces (N, H, W, 3)."""
    data = mx.nd.array(np.ascontiguousarray(faces.transpose(0, 3, 1, 2)), dtype="float32")
    return symbol.bind(mx.cpu(), {**arg_params, "data": data}, aux_states=aux_params).forward()[0].asnumpy()
