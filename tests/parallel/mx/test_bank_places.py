"""Training gives the same results for a bank in one array, in several pieces and in files."""

import horovod.mxnet as hvd
import numpy as np
import pytest
from layer import Batches, E, G, OnlyForward, build_bank, build_module, fit, random_batches

from oracle import MARGINS
from partial_fc.layer.sharding import shard_of
from partial_fc_mxnet import MarginLoss
from partial_fc_mxnet.layer import center_storage

CLASSES, STEPS = 41, 6


def train(loss, ratio, folder=None):
    """Trains a few steps; returns the number of pieces, and losses, this rank's centers and momentum, the backbone."""
    bank = build_bank(CLASSES, ratio, "", folder=folder)
    # Longer centers, because a few steps would turn the short ones of a new bank completely.
    for number, piece in enumerate(bank.centers.pieces):
        bank.centers.copy_rows(number, "weight", [(0, piece.weight.asnumpy() * 30)])
    module, params = build_module(bank, loss)
    losses = fit(module, params, Batches(*random_batches(CLASSES, STEPS)), STEPS)
    arg_params, _ = module.get_export_params()
    trained = [*bank.get(np.arange(bank.num_local)), arg_params["fc1_weight"], arg_params["fc1_bias"]]
    return len(bank.centers.pieces), [np.array(losses), *(array.asnumpy() for array in trained)]


@pytest.fixture
def small_pieces(monkeypatch):
    """Divides the classes of a rank into three pieces."""
    rows = -(-shard_of(CLASSES, 0, hvd.size()).size // 3)
    monkeypatch.setattr(center_storage, "MAX_ELEMENTS", rows * E)


LOSSES = {"margin": MarginLoss(MARGINS["arcface"], 8.0, E), "autograd": OnlyForward(MARGINS["cosface"], 8.0)}
RATIOS = [1.0, 0.4]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pieces", [1, 3])
def test_files_equal_memory(loss, ratio, pieces, tmp_path, request):
    if pieces > 1:
        request.getfixturevalue("small_pieces")
    number, expected = train(LOSSES[loss], ratio)
    _, actual = train(LOSSES[loss], ratio, str(tmp_path))
    assert number == pieces
    for values, other in zip(expected, actual):
        np.testing.assert_array_equal(other, values)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("loss", LOSSES)
def test_pieces_equal_one_array(loss, ratio, request):
    _, expected = train(LOSSES[loss], ratio)
    request.getfixturevalue("small_pieces")
    pieces, actual = train(LOSSES[loss], ratio)
    assert pieces == 3
    for values, other in zip(expected, actual):
        # Tiles change the order of the sums over the classes; float32 has 7 digits, and 6 steps lose one.
        np.testing.assert_allclose(other, values, rtol=1e-5, atol=1e-6)


def prefetched(bank, classes, steps, monkeypatch):
    """Returns the indices that some steps prefetch."""
    indices, prefetch = [], bank.centers.prefetch
    monkeypatch.setattr(bank.centers, "prefetch", lambda index: (indices.append(index), prefetch(index)))
    module, params = build_module(bank, LOSSES["margin"])
    fit(module, params, Batches(*random_batches(classes, steps)), steps)
    return indices


def test_sample_of_a_replaced_method_is_prefetched(tmp_path, monkeypatch):
    bank = build_bank(CLASSES, 1.0, "", folder=str(tmp_path))
    every = np.arange(bank.num_local)
    monkeypatch.setattr(bank, "sample", lambda labels: (every, np.unique(labels)))
    (index,) = prefetched(bank, CLASSES, 1, monkeypatch)
    assert index is every


def test_the_next_step_is_prefetched_after_the_update(tmp_path, monkeypatch):
    bank = build_bank(10 * CLASSES, 0.5, "", folder=str(tmp_path))
    _, drawn, sampled, following = prefetched(bank, 10 * CLASSES, 2, monkeypatch)
    assert len(np.setdiff1d(sampled, drawn)) <= G
    assert bank.sampler.prefetch().tolist() == following.tolist()


@pytest.mark.parametrize("in_files", [False, True])
def test_centers_of_some_classes_are_set(in_files, tmp_path, small_pieces):
    bank = build_bank(CLASSES, 1.0, "", folder=str(tmp_path) if in_files else "")
    expected = np.concatenate(bank.host_rows("weight", copied=True))
    rows = np.delete(np.arange(bank.num_local), [1, 2])
    expected[rows] = np.random.default_rng(0).standard_normal((len(rows), E))
    bank.set_centers(rows, expected[rows])
    np.testing.assert_array_equal(np.concatenate(bank.host_rows("weight", copied=True)), expected)
