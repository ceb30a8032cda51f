"""The planner's sizes of backbones equal the symbols' sizes."""

import json

import mxnet as mx
import numpy as np
import pytest
from symbol_arrays import shapes_of

from partial_fc_mxnet.symbol import NETWORKS, get_symbol
from partial_fc_tools.planner.backbones import SYMBOLS

IN_PLACE = ("elemwise_add", "Activation")  # operators whose output takes the place of their input


def sizes_of(symbol):
    """Returns the number of elements of (parameters, statistics) by name."""
    return [{name: int(np.prod(shape)) for name, shape in some.items()} for some in shapes_of(symbol)]


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_backbones_are_those_of_the_symbols(network):
    embedding = 96
    symbol = get_symbol(network, embedding, fp16=True)
    sizes, statistics = sizes_of(symbol)
    types, _, _ = symbol.infer_type(data="float32")
    half = {name for name, kind in zip(symbol.list_arguments(), types) if kind == np.float16}
    planned = SYMBOLS[network].sizes(embedding, fp16=True)
    assert planned.half_parameters == sum(sizes[name] for name in half) and planned.parameters == sum(sizes.values())
    assert SYMBOLS[network].prelu == (NETWORKS[network].net_act == "prelu")
    assert planned.statistics == sum(statistics.values())


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_what_a_step_keeps_and_computes_of_an_image(network):
    symbol = get_symbol(network)
    nodes = json.loads(symbol.tojson())["nodes"]
    operators = {node["name"]: node["op"] for node in nodes}
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=(1, 3, 112, 112))
    outputs = {name[: -len("_output")]: shape for name, shape in zip(internals.list_outputs(), shapes)}
    kept = [int(np.prod(shape)) for name, shape in outputs.items() if operators.get(name) not in (None, *IN_PLACE)]
    assert (SYMBOLS[network].kept, SYMBOLS[network].largest) == (sum(kept), max(kept))
    # Each weight of a convolution is multiplied once per pixel of the output, each weight of the head once.
    sizes, _ = sizes_of(symbol)
    products = [node for node in nodes if node["op"] in ("Convolution", "FullyConnected")]
    weights = {node["name"]: nodes[node["inputs"][1][0]]["name"] for node in products}
    counted = sum(sizes[weight] * int(np.prod(outputs[name][2:])) for name, weight in weights.items())
    assert SYMBOLS[network].sizes(512, fp16=False).multiplications == counted


@pytest.mark.parametrize("network", ["r18", "r50", "rx50", "mbf"])
def test_activations_are_those_of_mxnets_memory_plan(network):
    symbol, batch = get_symbol(network), 4
    gradients = {name: "null" if name == "data" else "write" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), data=(batch, 3, 112, 112), grad_req=gradients)
    (planned,) = [line for line in executor.debug_str().splitlines() if line.endswith("MB allocated")]
    activations = batch * SYMBOLS[network].sizes(512, fp16=False).saved_bytes / 2**20
    # MXNet reports whole MiB, and reuses 2 % more memory in grouped and depth-wise units than the planner counts.
    assert activations == pytest.approx(int(planned.split()[1]), rel=0.02, abs=1)
