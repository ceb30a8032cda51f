"""Verification with TorchEngine gives the figures of one process."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import RANK, SIZE
from torch_training import build_engine

import verification_cases
from partial_fc.evaluation.verification import verify
from partial_fc.training.embedder import Embedder
from partial_fc.training.verifying import CallBackVerification
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.pixels import normalized, to_images
from verification_cases import PAIRS, SIDE, E, draw_images, write_set


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


def test_the_accuracy_is_that_of_one_rank(folder):
    images = draw_images(60)
    issame = write_set(f"{folder}/set.bin", images, default_collectives)
    engine = own_engine()
    callback = CallBackVerification(Embedder(engine, 6, SIDE), {"set": f"{folder}/set.bin"}, 5, RANK)
    callback.prepare()
    for num_update in range(6):
        callback(SimpleNamespace(num_update=num_update))
    assert [point.num_update for point in callback.history["set"]] == [0, 5]
    point, expected = callback.history["set"][-1], verify(sum(expected_embeddings(images)), issame)
    assert point.accuracy == pytest.approx(expected.accuracy)
    assert point.tar_at_far == pytest.approx(expected.tar_at_far)
    assert 0 < point.agreement < 0.99  # by the running statistics, and by those of a batch
    np.testing.assert_allclose(engine.statistics()["aux:2.running_mean"], np.arange(E), atol=1e-6)
