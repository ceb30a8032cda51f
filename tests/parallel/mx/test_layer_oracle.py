"""Loss, feature gradient and center update against the float64 oracle."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import E, G, OnlyForward, all_ranks, build_bank, build_module

import oracle
from oracle import MARGINS
from partial_fc.layer.sharding import shard_of
from partial_fc_mxnet import MarginLoss, MemoryBank

SCALE = 8.0  # small enough that the oracle's central differences keep eight digits

# float32 against float64: the longest sums have 31 terms of order 1, and a target angle near 0 or pi amplifies a
# rounding error of 6e-8 by at most 1 / sin(theta), below 100 here.
TOLERANCE = dict(rtol=2e-4, atol=2e-5)


def one_step(classes, ratio, loss, folder, corrected=False, **options):
    """Runs the layer once on fixed features; returns inputs and results of all ranks."""
    rng = np.random.default_rng(7)
    features = rng.standard_normal((G, E)).astype(np.float32)
    labels = rng.integers(0, classes, G)
    bank = build_bank(classes, ratio, folder, sampling_correction=corrected)
    module, _ = build_module(bank, loss, **options)
    samples, sample = [], bank.sample
    if not corrected:  # the correction refuses a replaced sample()
        bank.sample = lambda label: samples.append(sample(label)) or samples[-1]
    before = all_ranks(bank.weight.asnumpy(), "before")
    module.num_classes = classes
    d_features, loss_value = module.backward_sample(mx.nd.array(features), labels)
    moved = (bank.weight_mom.asnumpy() != 0).any(axis=1)  # the weight decay moves every sampled center
    index = samples[0][0] if samples else np.flatnonzero(moved)
    partial = hvd.allgather_object(d_features.asnumpy(), name="partial") if hvd.size() > 1 else [d_features.asnumpy()]
    return {
        "features": features.astype(np.float64),
        "labels": labels,
        "before": before.astype(np.float64),
        "classes": all_ranks(index + bank.class_start, "sampled"),
        "d_features": np.sum(partial, axis=0),
        "loss": loss_value,
        "after": all_ranks(bank.weight.asnumpy(), "after"),
        "mom": all_ranks(bank.weight_mom.asnumpy(), "mom"),
    }


def check(result, margins, threshold=0.0, counts=None):
    if hvd.rank() != 0:
        return  # the oracle is slow, and every rank has the same numbers
    features, centers = result["features"], result["before"]
    args = (features, centers, result["labels"], result["classes"].tolist(), margins, SCALE, threshold, counts)
    np.testing.assert_allclose(result["loss"], oracle.mean_loss(*args), rtol=1e-5)
    d_features, d_centers = oracle.gradients(*args)
    np.testing.assert_allclose(result["d_features"] / G, d_features, **TOLERANCE)
    after, mom = oracle.sgd_momentum(centers, np.zeros_like(centers), d_centers, lr=0.1)
    sampled = np.isin(np.arange(len(centers)), result["classes"])
    np.testing.assert_allclose(result["after"][sampled], after[sampled], **TOLERANCE)
    np.testing.assert_allclose(result["mom"][sampled], mom[sampled], **TOLERANCE)
    np.testing.assert_array_equal(result["after"][~sampled], centers[~sampled])
    assert not result["mom"][~sampled].any()


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("classes, ratio", [(12, 1.0), (7, 1.0), (2, 1.0), (18, 0.5), (31, 0.4)])
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_matches_the_oracle(name, classes, ratio, threshold, tmp_path):
    result = one_step(classes, ratio, MarginLoss(MARGINS[name], SCALE, E, threshold), tmp_path)
    assert set(result["labels"]) <= set(result["classes"])
    check(result, MARGINS[name], threshold)


@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_textbook_form_matches_the_oracle(threshold, tmp_path):
    class Textbook:  # not a MarginLoss: MXNet differentiates its forward
        forward = staticmethod(MarginLoss(MARGINS["arcface"], SCALE, E, threshold).forward)

    check(one_step(18, 0.5, Textbook(), tmp_path), MARGINS["arcface"], threshold)


@pytest.mark.parametrize("loss", [MarginLoss, OnlyForward])
@pytest.mark.parametrize("classes, ratio", [(18, 0.5), (31, 0.5), (12, 1.0)])
@pytest.mark.parametrize("tiling", [{}, {"tile_classes": 3, "logits_cache_mb": 0}])
def test_sampled_negatives_count_for_all(loss, classes, ratio, tiling, tmp_path):
    result = one_step(classes, ratio, loss(MARGINS["arcface"], SCALE), tmp_path, corrected=True, **tiling)
    labels, shards = result["labels"], [shard_of(classes, rank, hvd.size()) for rank in range(hvd.size())]
    counts = oracle.negative_counts(result["classes"], labels, shards)
    assert set(labels) < set(result["classes"]) and (max(counts.values()) > 1.5) == (ratio < 1)
    check(result, MARGINS["arcface"], counts=counts)


def test_a_correction_that_has_no_sense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sample ratio of 0"):
        build_bank(12, 0, tmp_path, sampling_correction=True)
    bank = build_bank(12, 0.5, tmp_path, sampling_correction=True)
    with pytest.raises(ValueError, match="sample ratio of 0"):
        bank.set_sample_ratio(0)
    bank.sample = lambda label: (np.arange(bank.num_local), np.unique(label))
    module, _ = build_module(bank, MarginLoss(MARGINS["arcface"], SCALE, E))
    with pytest.raises(ValueError, match=r"sampling_correction .* your own sample\(\)"):
        module.backward_sample(mx.nd.ones((G, E)), np.arange(G))


@pytest.mark.parametrize("loss", [MarginLoss, OnlyForward])
def test_only_the_classes_of_the_batch(loss, tmp_path):
    result = one_step(31, 0, loss(MARGINS["arcface"], SCALE), tmp_path)
    assert sorted(result["classes"]) == sorted(set(result["labels"]))
    check(result, MARGINS["arcface"])


def test_rows_without_their_positive_are_left_out(tmp_path, monkeypatch):
    def sample(bank, label):
        return np.arange(0, bank.num_local, 2), np.unique(label)

    monkeypatch.setattr(MemoryBank, "sample", sample)
    monkeypatch.setattr(MemoryBank, "requires_positives", property(lambda bank: False, lambda bank, value: None), False)
    result = one_step(31, 0.4, MarginLoss(MARGINS["arcface"], SCALE, E), tmp_path)
    assert 0 < np.isin(result["labels"], result["classes"]).sum() < G
    check(result, MARGINS["arcface"])


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("classes, ratio", [(7, 1.0), (31, 0.4)])
def test_user_loss_matches_the_oracle(name, classes, ratio, tmp_path):
    check(one_step(classes, ratio, OnlyForward(MARGINS[name], SCALE), tmp_path), MARGINS[name])


def test_more_positives_than_num_sample_are_all_sampled(tmp_path):
    # r = 0.01 gives S = 1 on each rank, and the labels have several classes.
    result = one_step(18, 0.01, MarginLoss(MARGINS["cosface"], SCALE, E), tmp_path)
    assert set(result["labels"]) <= set(result["classes"])
    assert len(result["classes"]) > hvd.size()
    check(result, MARGINS["cosface"])


def test_backward_uses_every_class(tmp_path):
    bank = build_bank(9, 0.2, tmp_path)
    module, _ = build_module(bank, MarginLoss(MARGINS["arcface"], SCALE, E))
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((G, E)).astype(np.float32), rng.integers(0, 9, G)
    before = bank.weight.asnumpy()
    centers = all_ranks(before, "before").astype(np.float64)
    d_features, loss = module.backward(mx.nd.array(features), labels)
    expected = oracle.mean_loss(features.astype(np.float64), centers, labels, range(9), MARGINS["arcface"], SCALE)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert d_features.shape == (G, E)
    assert (bank.weight.asnumpy() != before).any(axis=1).all()


def test_missing_positive_of_a_replaced_sample_raises(tmp_path):
    bank = build_bank(12, 1.0, tmp_path)
    module, _ = build_module(bank, MarginLoss(MARGINS["arcface"], SCALE, E))
    labels = np.arange(0, 12, 2)
    # Each rank omits its first class.
    bank.sample = lambda label: (np.arange(1, bank.num_local), np.unique(label))
    with pytest.raises(ValueError, match=rf"{hvd.size()} of 6 labels have no center .* the first is label 0 at row 0"):
        module.backward_sample(mx.nd.ones((G, E)), labels)
