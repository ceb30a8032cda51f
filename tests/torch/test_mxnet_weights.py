"""Weights of MXNet give the same embeddings in PyTorch; tests/mx/test_recorded_embeddings.py records those of MXNet."""

import json

import numpy as np
import pytest
import torch

from drawn_weights import mxnet_weights
from partial_fc.checkpoint.backbone_layers import MXNET_TO_TORCH, SHARED
from partial_fc.checkpoint.model_format import MXNET, TORCH
from partial_fc.checkpoint.torch_names import torch_names
from partial_fc.export.parity import random_faces
from partial_fc_torch.backbones import get_model
from partial_fc_torch.weights import set_weights
from paths import ROOT

RECORDED = {
    MXNET_TO_TORCH.get(network, network): embeddings
    for network, embeddings in json.loads((ROOT / "tests" / "assets" / "mxnet_embeddings.json").read_text()).items()
}


def embed(model):
    """(N, E) of length 1."""
    faces = random_faces((112, 112), 2).transpose(0, 3, 1, 2).astype(np.float32)
    with torch.no_grad():
        embeddings = model.eval()(torch.from_numpy((faces / 255 - 0.5) / 0.5)).numpy()
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def build(network, eps):
    """The network with MXNet's weights."""
    model = get_model(network, num_features=len(RECORDED[network][0]), eps=eps)
    model.pixel_scale = MXNET.pixel_scale
    set_weights(model, mxnet_weights(network, model.state_dict()), network)
    return model


@pytest.mark.parametrize("network", sorted(RECORDED))
def test_embeddings_are_those_of_mxnet(network):
    np.testing.assert_allclose(embed(build(network, MXNET.eps)), RECORDED[network], rtol=0, atol=1e-5)


def test_another_epsilon_gives_other_embeddings():
    assert np.abs(embed(build("r18", TORCH.eps)) - RECORDED["r18"]).max() > 2e-5


@pytest.mark.parametrize("network", SHARED)
def test_the_table_has_every_name_of_the_network(network):
    with torch.device("meta"):
        state = get_model(network).state_dict()
    assert list(torch_names(network).values()) == [key for key in state if not key.endswith("num_batches_tracked")]
