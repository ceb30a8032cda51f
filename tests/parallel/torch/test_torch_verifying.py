"""Verification with TorchEngine gives the figures of one process."""

import copy

import pytest
import torch
from torch import nn
from torch_layer import RANK, SIZE
from torch_training import build_engine

import verification_cases
from partial_fc_torch.pixels import normalized, to_images
from verification_cases import PAIRS, SIDE, E


def backbone():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, E), nn.BatchNorm1d(E))
    model[2].running_mean.copy_(torch.arange(E))
    nn.init.constant_(model[2].running_var, 2.0)
    nn.init.normal_(model[2].bias)
    return model


def own_engine():
    """An engine whose running mean is another one on each rank, and that of backbone() when averaged."""
    engine = build_engine(backbone())
    engine.backbone[2].running_mean += RANK - (SIZE - 1) / 2
    return engine


def expected_embeddings(images):
    """Those of one process in float64, of the images and of the mirrored images."""
    model = copy.deepcopy(backbone()).double().eval()
    with torch.no_grad():
        both = [normalized(to_images(torch.from_numpy(faces.copy()))) for faces in (images, images[:, :, ::-1])]
        return [model(faces.double()).numpy() for faces in both]


@pytest.mark.parametrize("pairs, batch", PAIRS)
def test_distances_are_those_of_one_rank(pairs, batch, folder):
    verification_cases.distances_are_those_of_one_rank(own_engine(), expected_embeddings, folder, pairs, batch)


def test_a_stop_request_ends_a_verification_on_all_ranks(folder, monkeypatch):
    verification_cases.a_stop_request_ends_a_verification_on_all_ranks(own_engine(), folder, monkeypatch)
