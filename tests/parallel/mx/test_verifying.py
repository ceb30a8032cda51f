"""Verification, saving and new centers: the same at any number of ranks, with errors raised on every rank."""

import os
from types import SimpleNamespace

import cv2
import horovod.mxnet as hvd
import layer
import mxnet as mx
import numpy as np
import pytest
from layer import all_ranks, build_bank

import verification_cases
from partial_fc.data.face_records import write_face_set
from partial_fc.distributed.errors import JobError
from partial_fc.evaluation.verification import VerificationPoint, verify
from partial_fc.export.model import FaceModel
from partial_fc.layer.sharding import shard_of
from partial_fc.training.new_centers import set_mean_centers
from partial_fc_mxnet import CallBackModelSave, CallBackVerification, FaceImageIter, FacePairs, MarginLoss
from partial_fc_mxnet.collectives import default_collectives
from partial_fc_mxnet.onnx_export import OnnxExport
from partial_fc_mxnet.ops import module_arrays
from verification_cases import PAIRS, SIDE, E, draw_images

BATCH = 6


def symbol():
    """A linear backbone over pixels."""
    data = (mx.sym.Variable("data") - 127.5) * 0.0078125
    return mx.sym.BatchNorm(mx.sym.FullyConnected(data, num_hidden=E, flatten=True, name="pre_fc1"), name="fc1")


def build_module(batch=BATCH):
    """Returns the bound module, with the same parameters on every rank, but different running statistics."""
    module, _ = layer.build_module(build_bank(6, 1.0, ""), MarginLoss(embedding_size=E), symbol=symbol())
    module.bind([mx.io.DataDesc("data", (batch, 3, SIDE, SIDE))])
    rng = np.random.default_rng(2)
    weight, beta = rng.standard_normal((E, 3 * SIDE * SIDE)), rng.standard_normal(E)
    arg_params = {"pre_fc1_weight": weight, "pre_fc1_bias": beta, "fc1_beta": beta, "fc1_gamma": np.ones(E)}
    mean = np.arange(E) + hvd.rank() - (hvd.size() - 1) / 2  # 0, 1, 2, 3 when averaged
    aux_params = {"fc1_moving_mean": mean, "fc1_moving_var": np.full(E, 2.0)}
    arrays = [{name: mx.nd.array(value) for name, value in some.items()} for some in (arg_params, aux_params)]
    module.init_params(arg_params=arrays[0], aux_params=arrays[1])
    return module


def write_set(path, images, damaged=None):
    return verification_cases.write_set(path, images, default_collectives, damaged)


def expected_embeddings(images):
    """Returns NumPy's embeddings of images and of mirrored images."""
    module = build_module()
    params = {name: array.asnumpy().astype(np.float64) for name, array in module.get_export_params()[0].items()}
    both = []
    for faces in (images, images[:, :, ::-1]):
        pixels = ((faces.astype(np.float64) - 127.5) * 0.0078125).transpose(0, 3, 1, 2).reshape(len(faces), -1)
        values = pixels @ params["pre_fc1_weight"].T + params["pre_fc1_bias"]
        both.append((values - np.arange(E)) / np.sqrt(2 + 1e-3) + params["fc1_beta"])
    return both


@pytest.mark.parametrize("pairs, batch", [*PAIRS, (11, 1)])
def test_distances_are_those_of_one_rank(pairs, batch, folder):
    verification_cases.distances_are_those_of_one_rank(build_module(batch), expected_embeddings, folder, pairs, batch)


def test_new_centers_are_the_mean_embeddings_of_their_images(folder):
    images = np.split(draw_images(15), np.cumsum([3, 1, 4, 5]))  # for 5 classes; the sixth has no images
    encoded = [[cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in of_class] for of_class in images]
    default_collectives.on_rank_zero("write", write_face_set, folder, encoded, (SIDE, SIDE))
    module = build_module()
    before = all_ranks(module.memory_bank.weight.asnumpy(), "before")
    data = FaceImageIter(5, (3, SIDE, SIDE), f"{folder}/train.rec", context=hvd.rank(), context_num=hvd.size())
    set_mean_centers(module, data.class_images(), np.arange(6), BATCH)
    data.close()
    centers = all_ranks(module.memory_bank.weight.asnumpy(), "centers")
    for center, of_class in zip(centers, images):
        embeddings = expected_embeddings(of_class)[0]
        total = np.sum(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), axis=0)
        np.testing.assert_allclose(center, 0.01 * np.sqrt(E) * total / np.linalg.norm(total), rtol=0, atol=1e-7)
    np.testing.assert_array_equal(centers[5], before[5])


def test_a_stop_request_ends_a_verification_on_all_ranks(folder, monkeypatch):
    verification_cases.a_stop_request_ends_a_verification_on_all_ranks(build_module(), folder, monkeypatch)


def test_embedding_in_training_mode_changes_nothing(folder):
    """Even if the forward pass changes the running statistics, as cuDNN's batch norm does in training mode."""
    module = build_module()
    before = {name: array.asnumpy() for name, array in module_arrays.statistics(module).items()}
    forward = module._module.forward

    def forward_like_cudnn(batch, is_train):
        forward(batch, is_train=is_train)
        for array in module_arrays.statistics(module._module).values():
            array[:] = array + 1

    module._module.forward = forward_like_cudnn
    module.embed(np.ones((BATCH, 3, SIDE, SIDE), np.uint8), batch_statistics=True)
    for name, array in module_arrays.statistics(module).items():  # the device's arrays, not their copies on the host
        np.testing.assert_array_equal(array.asnumpy(), before[name], err_msg=name)


def test_both_modes_are_compared_without_training(folder):
    images = draw_images(48)
    write_set(f"{folder}/set.bin", images)
    module = build_module()
    before = module.get_export_params()
    figures = verification_cases.measure(module, BATCH, f"{folder}/set.bin").last
    # For each rank's first batch, normalized by the running statistics and by the batch's statistics.
    cosines = []
    for rank in range(hvd.size()):
        shard = shard_of(24, rank, hvd.size())
        evaluated = expected_embeddings(images[2 * shard.start :][:BATCH])[0]
        beta = module.get_export_params()[0]["fc1_beta"].asnumpy()
        linear = (evaluated - beta) * np.sqrt(2 + 1e-3) + np.arange(E)
        trained = (linear - linear.mean(axis=0)) / np.sqrt(linear.var(axis=0) + 1e-3) + beta
        lengths = np.linalg.norm(evaluated, axis=1) * np.linalg.norm(trained, axis=1)
        cosines.append(np.sum(evaluated * trained, axis=1) / lengths)
    assert figures.agreement == pytest.approx(np.mean(cosines), abs=1e-5)
    assert figures.agreement < 0.99
    module.average_statistics()
    after = module.get_export_params()
    np.testing.assert_allclose(after[1]["fc1_moving_mean"].asnumpy(), np.arange(E), rtol=1e-6)
    for name, array in before[0].items():
        np.testing.assert_array_equal(after[0][name].asnumpy(), array.asnumpy())


def verification_of(folder, trackers=None):
    return CallBackVerification(build_module(), BATCH, {"set": FacePairs(f"{folder}/set.bin", SIDE)}, 5, trackers)


def test_every_metric_is_logged_and_written(folder, caplog):
    images, written = draw_images(60), {}
    issame = write_set(f"{folder}/set.bin", images)
    trackers = SimpleNamespace(log=lambda values, num_update: written.update({num_update: values}))
    callback = verification_of(folder, trackers)
    callback.prepare()
    with caplog.at_level("INFO"):
        for num_update in range(11):
            callback(SimpleNamespace(num_update=num_update))
    expected = verify(sum(expected_embeddings(images)), issame)
    point = callback.history["set"][-1]
    assert [p.num_update for p in callback.history["set"]] == [0, 5, 10]
    assert (point.accuracy, point.tar_at_far) == pytest.approx((expected.accuracy, expected.tar_at_far))
    assert callback.verify_all(10) == {"set": point.accuracy} and len(callback.history["set"]) == 3
    if hvd.rank() == 0:
        assert written[10]["verification/set/xnorm"] == point.xnorm
        assert f"Dimensions: {point.dimensions:.1f}   Train/eval agreement: {point.agreement:.3f}" in caplog.text
        assert f"[set][10]Accuracy-Flip: {point.accuracy:.5f}" in caplog.text
        assert f"[set][10]XNorm: {point.xnorm:f}" in caplog.text and "[set][10]Accuracy-Highest: " in caplog.text
        assert f"in {point.seconds:.1f} s" in caplog.text
    else:
        assert not written and not caplog.text


def test_a_restored_history_is_continued(folder):
    write_set(f"{folder}/set.bin", draw_images(60))
    callback = verification_of(folder)
    callback.prepare()
    before = VerificationPoint(4, 0.99, 0.01, 1.5, 0.9, 1e-3, 20.0, 14.0, 0.95, 2.0)
    same_update = before._replace(num_update=5, accuracy=1.0)
    # The second point is of another version; the last one is replaced.
    callback.restore({"set": [list(before), [4, 0.99], list(same_update)], "gone": [list(before)]}, {})
    callback.verify_all(5)
    assert callback.history["set"][0] == before and len(callback.history["set"]) == 2
    assert callback.history["set"][1].accuracy < 1
    assert list(callback.history) == ["set"] and callback.best("set") == 0.99


@pytest.mark.parametrize(
    "pairs, damaged, message",
    [
        (30, 41, "image 41 .* is truncated"),
        (30, None, None),
        (9, None, r"set\.bin: 9 pairs"),
    ],
)
def test_sets_are_checked_before_training(folder, pairs, damaged, message):
    write_set(f"{folder}/set.bin", draw_images(2 * pairs), damaged)
    callback = verification_of(folder)
    if message is None:
        callback.prepare()
        default_collectives.barrier("prepared")
        default_collectives.on_rank_zero("remove", os.remove, f"{folder}/set.bin")
        assert list(callback.verify_all(5)) == ["set"]  # from memory
    else:
        with pytest.raises(JobError, match=message):
            callback.prepare()


class WrongExport(OnnxExport):
    """An export whose embeddings differ from the saved backbone's."""

    def _embed(self, arg_params, aux_params, faces):
        return super()._embed(arg_params, aux_params, faces) + 1.0


def save(module, folder, export, num_update):
    callback = CallBackModelSave(module.symbol, module, f"{folder}/model", hvd.rank(), 1000, export)
    callback.save(num_update)


def test_the_onnx_file_is_saved_with_the_model_or_the_save_fails(folder):
    module, faces = build_module(), draw_images(6)
    arguments = (module.symbol, SIDE, mx.cpu(), faces[:2], lambda num_update: {"num_update": str(num_update)})
    # As the other trainer leaves it from an earlier update.
    default_collectives.on_rank_zero("average", lambda: open(f"{folder}/backbone_ema.onnx", "w").close())
    save(module, folder, OnnxExport(*arguments), 3)
    default_collectives.barrier("saved")
    for _ in range(2):
        model = FaceModel.open(folder)
        np.testing.assert_allclose(model.embed(faces), expected_embeddings(faces)[0], rtol=1e-4, atol=1e-4)
        assert model.session.get_modelmeta().custom_metadata_map == {"pixel_range": "0..255", "num_update": "3"}
        with pytest.raises(JobError, match="other embeddings"):
            save(module, folder, WrongExport(*arguments), 4)
    assert sorted(os.listdir(folder)) == ["backbone.onnx", "model-0000.params", "model-symbol.json"]
