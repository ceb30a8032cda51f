"""Starting from another training's weights: a checkpoint, or files of the original trainer."""

import os
from pathlib import Path
from types import SimpleNamespace

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, G, all_ranks, build_bank, build_module, initial_params, random_batches

from partial_fc.checkpoint import CheckpointFolder
from partial_fc.distributed.errors import JobError
from partial_fc.training import saved_training
from partial_fc.training.saved_training import read_pretrained
from partial_fc_mxnet import CallBackCheckpoint, MarginLoss
from partial_fc_mxnet.build import MXNetFramework
from partial_fc_mxnet.collectives import default_collectives

CLASSES = 7


def module_of(classes=CLASSES):
    """Returns a module with random parameters and a new bank."""
    module, _ = build_module(build_bank(classes, 1.0, ""), MarginLoss(embedding_size=E))
    module.bind([mx.io.DataDesc("data", (G // hvd.size(), D))])
    module.init_params(arg_params=initial_params(seed=5), aux_params={})
    return module


def write_original(folder, rows_of_ranks, **params):
    """Writes files as the original trainer does, all of them on rank 0; returns the centers."""
    rng = np.random.default_rng(3)
    centers = rng.standard_normal((sum(rows_of_ranks), E)).astype(np.float32)
    write(f"{folder}/model-0000.params", {**{f"arg:{k}": v for k, v in initial_params().items()}, **params})
    for rank, rows in enumerate(np.split(centers, np.cumsum(rows_of_ranks)[:-1])):
        write(f"{folder}/{rank}_centers.param", mx.nd.array(rows))
    return centers


def write(path, arrays):
    default_collectives.on_rank_zero("write", mx.nd.save, path, arrays)


def start_from(path, classes=CLASSES, class_map=""):
    """Starts from `path` and returns the parameters, and the centers of all ranks."""
    module = module_of(classes)
    settings = SimpleNamespace(class_map=class_map, num_classes=classes)
    pretrained = read_pretrained(path, bool(class_map), default_collectives, MXNetFramework().read_pretrained)
    saved_training.take_pretrained(pretrained, settings, module)
    params, _ = module.get_export_params()
    return {name: array.asnumpy() for name, array in params.items()}, all_ranks(
        module.memory_bank.weight.asnumpy(), "centers"
    )


@pytest.mark.parametrize("name", ["", "model-0000.params"])
def test_weights_of_the_original(folder, name):
    write_original(folder, [3, 3, 3])
    fresh = all_ranks(module_of().memory_bank.weight.asnumpy(), "fresh")
    params, centers = start_from(os.path.join(folder, name))
    for key, value in initial_params().items():
        np.testing.assert_array_equal(params[key], value.asnumpy())
    np.testing.assert_array_equal(centers, fresh)  # without a class map, only the backbone's weights are used


@pytest.mark.parametrize("rows", [[3, 3, 3], [4, 3], [7]])  # the original trainer splits 7 classes into the first
def test_centers_of_the_original(folder, rows):
    written = write_original(folder, rows)
    _, centers = start_from(folder, class_map="same")
    np.testing.assert_array_equal(centers, written[:CLASSES])


def test_a_class_map_from_a_file(folder):
    written = write_original(folder, [4, 3])
    default_collectives.on_rank_zero("map", Path(folder, "map.txt").write_text, "6\n-1\n0\n")
    _, centers = start_from(folder, 3, f"{folder}/map.txt")
    np.testing.assert_array_equal(centers[[0, 2]], written[[6, 0]])
    assert np.abs(centers[1]).max() < 0.1  # a new center: the standard deviation is 0.01


def test_a_checkpoint(folder):
    module, params = build_module(build_bank(CLASSES, 1.0, ""), MarginLoss(embedding_size=E))
    checkpoint = CallBackCheckpoint(module, CheckpointFolder(f"{folder}/checkpoints", 1), frequent=0)
    module.fit(Batches(*random_batches(CLASSES, 2)), params, None, mx.init.Xavier(), max_update=2)
    checkpoint.save(2)
    ((_, path),) = default_collectives.broadcast("paths", checkpoint.folder.complete())
    params, centers = start_from(path, class_map="same")
    for name, value in module.get_export_params()[0].items():
        np.testing.assert_array_equal(params[name], value.asnumpy())
    np.testing.assert_array_equal(centers, all_ranks(module.memory_bank.weight.asnumpy(), "trained"))


def test_half_precision_weights_become_float32(folder):
    bias = np.array([0.5, -1, 2, 0.25], np.float16)
    write_original(folder, [7], **{"arg:fc1_bias": mx.nd.array(bias, dtype="float16")})
    assert (start_from(folder)[0]["fc1_bias"] == bias).all()


@pytest.mark.parametrize("shape, value, problem", [((E, D + 1), 0, "has shape"), ((E, D), np.nan, "not finite")])
def test_bad_weights_name_file_and_parameter(shape, value, problem, folder):
    write_original(folder, [7], **{"arg:fc1_weight": mx.nd.full(shape, value)})
    with pytest.raises(JobError, match=f"{folder}/model-0000.params: arg:fc1_weight .*{problem}"):
        start_from(folder)


def test_more_classes_than_saved_centers_need_a_class_map(folder):
    write_original(folder, [7])
    with pytest.raises(JobError, match="7 classes and this training has 9"):
        start_from(folder, 9, class_map="same")


def test_an_ambiguous_path_is_refused(folder):
    with pytest.raises(JobError, match="neither a checkpoint nor weights"):
        start_from(folder)
    write_original(folder, [7])
    write(f"{folder}/other-0000.params", {"arg:x": mx.nd.ones(1)})
    with pytest.raises(JobError, match="several .params files"):
        start_from(folder)
    with pytest.raises(JobError, match="does not exist"):
        start_from(os.path.join(folder, "none"))
