"""SampleDistributeModule around the layer: collectives, invalid input, errors."""

import math

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, G, OnlyForward, build_bank, build_module, initial_params, random_batches, ready_module

from partial_fc_mxnet import CallBackFinite, MarginLoss
from partial_fc_mxnet.ops import module_arrays


def bound_module(classes, tmp_path, ratio=1.0):
    return ready_module(build_bank(classes, ratio, tmp_path), MarginLoss(embedding_size=E))


def test_forward_gathers_features_and_labels_in_rank_order(tmp_path):
    module = bound_module(50, tmp_path)
    module.num_classes = 2**40 + 2
    images, labels = random_batches(50, 1)
    labels[0, ::2] += 2**40 - 48  # float32 would round all of these to 2^40
    features, gathered = module.forward(Batches(images, labels).next(), is_train=True)
    weight = initial_params()
    expected = images[0] @ weight["fc1_weight"].asnumpy().T + weight["fc1_bias"].asnumpy()
    np.testing.assert_allclose(features.asnumpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(gathered.asnumpy(), labels[0])
    assert gathered.dtype == np.int64
    assert module.forward(Batches(images, labels).next(), is_train=False) is None


@pytest.mark.world_size(1)
@pytest.mark.parametrize("label", [-1, 50])
def test_a_label_outside_the_classes_is_refused(label, tmp_path):
    module = bound_module(50, tmp_path)
    images, labels = random_batches(50, 1)
    labels[0, 0] = label
    with pytest.raises(ValueError, match=f"label {label} is not one of the 50 classes"):
        module.forward(Batches(images, labels).next(), is_train=True)


@pytest.mark.parametrize("make", [lambda margins: MarginLoss(margins, 64, E), lambda margins: OnlyForward(margins, 64)])
@pytest.mark.parametrize("margins", [(1.0, 0.5, 0.0), (1.0, 0.0, 0.4), (1.5, 0.0, 0.0), (3.0, 1.0, 0.0)])
def test_feature_equal_to_its_center_gives_finite_gradients(make, margins, tmp_path):
    bank = build_bank(6, 1.0, tmp_path)
    module, _ = build_module(bank, make(margins))
    start = bank.weight.copy()
    centers = np.concatenate(hvd.allgather_object(start.asnumpy(), name="centers"))
    for features in (centers, -centers):  # theta = 0 and theta = pi
        start.copyto(bank.weight)
        bank.weight_mom[:] = 0
        d_features, loss = module.backward_sample(mx.nd.array(features), np.arange(6))
        assert math.isfinite(loss)
        assert np.isfinite(d_features.asnumpy()).all()
        assert np.isfinite(bank.weight.asnumpy()).all()


def test_a_nan_loss_stops_every_rank_and_names_the_features(tmp_path):
    module = bound_module(50, tmp_path)
    features = mx.nd.ones((G, E))
    features[-1, 0] = np.nan
    before = module.memory_bank.weight.asnumpy()
    with pytest.raises(
        FloatingPointError, match=rf"the loss is nan at update 1 \(non-finite features on rank {hvd.size() - 1}\)"
    ):
        module.backward_all(features, np.zeros(G, np.int64))
    np.testing.assert_array_equal(module.memory_bank.weight.asnumpy(), before)


def test_a_nan_parameter_stops_training(tmp_path):
    module = bound_module(50, tmp_path)
    check = CallBackFinite(module, frequent=2)
    check(module.batch_end_param(None, 0, 2))
    params, _ = module.get_export_params()
    params["fc1_bias"][1] = np.inf
    module_arrays.backbone(module).set_params(params, {})
    check(module.batch_end_param(None, 0, 3))
    with pytest.raises(FloatingPointError, match="fc1_bias is not finite after update 4"):
        check(module.batch_end_param(None, 0, 4))


@pytest.mark.world_size(2, 3)
def test_unequal_batches_are_refused_on_every_rank(tmp_path):
    module, _ = build_module(build_bank(7, 1.0, tmp_path), MarginLoss(embedding_size=E))
    with pytest.raises(ValueError, match="the ranks' batch sizes are"):
        module.bind([mx.io.DataDesc("data", (2 + hvd.rank(), D))])


def test_an_embedding_of_another_size_is_refused(tmp_path):
    module, _ = build_module(build_bank(7, 1.0, tmp_path, embedding_size=E + 1), MarginLoss(embedding_size=E))
    with pytest.raises(ValueError, match=f"embeddings of {E}, the memory bank holds centers of {E + 1}"):
        module.bind([mx.io.DataDesc("data", (2, D))])


def test_buffers_are_allocated_once(tmp_path):
    module = bound_module(7, tmp_path)
    first = module.get_ndarray(mx.cpu(), "buffer", (2, 3))
    first[:] = 5
    assert module.get_ndarray(mx.cpu(), "buffer", (2, 3)) is first
    copied = module.get_ndarray2(mx.cpu(), "buffer", mx.nd.ones((2, 3)))
    assert copied is first
    assert (first.asnumpy() == 1).all()
    assert module.get_ndarray(mx.cpu(), "buffer", (2, 4)).shape == (2, 4)


def test_broadcast_parameters_copies_from_rank_0(tmp_path):
    params = {"b": mx.nd.full((2,), hvd.rank() + 5), "a": mx.nd.full((3,), hvd.rank())}
    bound_module(7, tmp_path).broadcast_parameters(params)
    assert params["a"].asnumpy().tolist() == [0, 0, 0]
    assert params["b"].asnumpy().tolist() == [5, 5]


def test_callbacks_receive_loss_epoch_and_update(tmp_path):
    received = []
    module, params = build_module(build_bank(7, 1.0, tmp_path), MarginLoss(embedding_size=E))
    module.fit(Batches(*random_batches(7, 2)), params, [received.append], mx.init.Xavier(), max_update=3)
    assert [(p.num_epoch, p.num_update) for p in received] == [(0, 1), (0, 2), (1, 3)]
    assert received[0].loss.shape == (1,)
    assert module.grad_cache.shape == (G, E)
