"""Public names and signatures, and the presets of networks."""

import inspect

import pytest

import default
import partial_fc_mxnet
from partial_fc.settings import presets
from partial_fc.utils import options
from partial_fc_mxnet.symbol import NETWORKS, get_symbol
from partial_fc_mxnet.symbol.blocks import ACTIVATIONS
from partial_fc_mxnet.symbol.head import HEADS


def test_network_presets_and_symbols_match():
    assert set(presets.NETWORKS["mxnet"]) == set(NETWORKS)


def test_settings_of_the_backbone_have_the_choices_of_the_symbols():
    assert (set(options.ACTIVATIONS), set(options.HEADS)) == ({"", *ACTIVATIONS}, {"", *HEADS})


@pytest.mark.parametrize("name", ["act", "output"])
def test_an_empty_option_selects_the_networks_default(name):
    value = getattr(options.options_of(default.SETTINGS.defaults(), "network_options"), name)
    assert value == ""
    assert get_symbol("small", 8, **{f"net_{name}": value or None}).list_outputs() == ["fc1_output"]


SIGNATURES = {
    "SampleDistributeModule": ["symbol", "fc7_model", "memory_bank", "memory_optimizer", "logger"],
    "SampleDistributeModule.fit": [
        *["self", "train_data", "optimizer_params", "batch_end_callback", "initializer", "arg_params", "aux_params"],
    ],
    "SampleDistributeModule.bind": ["self", "data_shapes", "label_shapes", "for_training"],
    "SampleDistributeModule.init_optimizer": ["self", "optimizer_params", "force_init"],
    "SampleDistributeModule.prepare": ["self", "data_batch", "sparse_row_id_fn"],
    "SampleDistributeModule.forward": ["self", "data_batch", "is_train"],
    "SampleDistributeModule.backward_all": ["self", "total_feature", "total_label"],
    "SampleDistributeModule.backward": ["self", "total_feature", "total_label"],
    "SampleDistributeModule.backward_sample": ["self", "total_feature", "total_label"],
    "SampleDistributeModule.allgather": ["self", "tensor", "name", "shape", "dtype", "context"],
    "SampleDistributeModule.get_ndarray": ["self", "context", "name", "shape", "dtype"],
    "SampleDistributeModule.get_ndarray2": ["self", "context", "name", "arr"],
    "SampleDistributeModule.broadcast_parameters": ["params"],
    "MemoryBank": ["num_sample", "num_local", "rank", "local_rank", "embedding_size", "prefix", "gpu"],
    "MemoryBank.sample": ["self", "global_label"],
    "MemoryBank.get": ["self", "index"],
    "MemoryBank.set": ["self", "index", "weight", "weight_mom"],
    "MarginLoss": ["margins", "loss_s", "embedding_size"],
    "MarginLoss.forward": ["self", "data", "weight", "mapping_label", "depth"],
    "MemoryBankSGDOptimizer": ["lr_scheduler", "rescale_grad", "momentum", "wd"],
    "DistributedOptimizer": ["optimizer", "prefix"],
    "FaceImageIter": ["batch_size", "data_shape", "path_imgrec", "shuffle", "rand_mirror", "cutoff", "color_jittering"],
    "DummyIter": ["batch_size", "data_shape", "batches"],
    "WeightIndexSampler": ["num_sample", "num_local", "rank"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_start_like_those_of_the_original(name):
    function = partial_fc_mxnet
    for part in name.split("."):
        function = getattr(function, part)
    assert list(inspect.signature(function).parameters)[: len(SIGNATURES[name])] == SIGNATURES[name]
