"""MXNet's array names and embeddings of random faces are those that tests/torch compares with.

PARTIAL_FC_UPDATE_ASSETS=1 writes the asset.
"""

import json
import os

import numpy as np
import pytest
from symbol_arrays import embed, random_parameters, shapes_of

from partial_fc.checkpoint.backbone_layers import MXNET_TO_TORCH, UNITS
from partial_fc.checkpoint.torch_names import torch_names
from partial_fc.export.parity import random_faces
from partial_fc_mxnet.symbol import get_symbol
from paths import ROOT

ASSET = ROOT / "tests" / "assets" / "mxnet_embeddings.json"
E = 8


def embeddings(network):
    """Returns MXNet's embeddings (N, E) of length 1."""
    symbol = get_symbol(network, E)
    embedded = embed(symbol, *random_parameters(symbol), random_faces((112, 112), 2))
    return embedded / np.linalg.norm(embedded, axis=1, keepdims=True)


@pytest.mark.parametrize("network", [*UNITS, "mbf", "small"])
def test_the_table_has_every_name_of_the_symbol(network):
    parameters, statistics = shapes_of(get_symbol(network))
    names = {*(f"arg:{name}" for name in parameters), *(f"aux:{name}" for name in statistics)}
    assert set(torch_names(MXNET_TO_TORCH.get(network, network))) == names


@pytest.mark.parametrize("network", ["r18", "mbf", "small"])
def test_embeddings_are_those_of_the_asset(network):
    computed = embeddings(network)
    recorded = json.loads(ASSET.read_text()) if ASSET.exists() else {}
    if os.environ.get("PARTIAL_FC_UPDATE_ASSETS"):
        recorded[network] = [[round(float(number), 8) for number in row] for row in computed]
        ASSET.write_text(json.dumps(recorded, indent=1) + "\n")
    np.testing.assert_allclose(computed, recorded[network], rtol=0, atol=1e-5)
