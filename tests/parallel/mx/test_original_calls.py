"""The original trainer's calls: a symbol with the label as second output, and a positional init_optimizer."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, E, G, all_ranks, build_bank, build_module, initial_params, linear_symbol, random_batches

from partial_fc_mxnet import MarginLoss
from partial_fc_mxnet.ops.module_arrays import backbone

CLASSES = 31
LABEL = mx.sym.Variable("softmax_label")


def original_symbol():
    """The original's ``Group([embedding, BlockGrad(label)])``."""
    return mx.sym.Group([linear_symbol(), mx.sym.BlockGrad(LABEL)])


def build(symbol, folder):
    """Returns the bound module without an optimizer, and the optimizer's parameters."""
    bank, loss = build_bank(CLASSES, 0.5, folder), MarginLoss((1.0, 0.3, 0.1), 16.0, E)
    module, params = build_module(bank, loss, symbol=symbol)
    data = Batches(*random_batches(CLASSES, 1))
    module.bind(data.provide_data, [mx.io.DataDesc("softmax_label", (G // hvd.size(),), np.int64)])
    module.init_params(mx.init.Xavier(), initial_params(), {})
    return module, params


def one_step(module):
    """Returns the bytes of loss, backbone and centers after one step; the same on every rank."""
    module.step(Batches(*random_batches(CLASSES, 1)).next())
    arg_params, _ = module.get_export_params()
    bank = module.memory_bank
    arrays = [module.loss_cache, *(arg_params[name] for name in sorted(arg_params))]
    centers = [all_ranks(array.asnumpy(), "centers") for array in (bank.weight, bank.weight_mom)]
    return [array.asnumpy().tobytes() for array in arrays] + [array.tobytes() for array in centers]


def test_the_group_of_embedding_and_label_trains_to_the_same_bytes(tmp_path):
    (grouped, params), (plain, _) = build(original_symbol(), tmp_path), build(linear_symbol(), tmp_path)
    grouped.init_optimizer(params)
    plain.init_optimizer(optimizer_params=params)
    assert one_step(grouped) == one_step(plain)
    assert [output.shape for output in grouped.get_outputs()] == [(G // hvd.size(), E)]
    assert grouped.symbol.list_arguments() == ["data", "fc1_weight", "fc1_bias"]


@pytest.mark.parametrize(
    "outputs",
    [
        [linear_symbol(), linear_symbol()],
        [mx.sym.BlockGrad(LABEL), linear_symbol()],
        [linear_symbol(), mx.sym.BlockGrad(mx.sym.Variable("data"))],
        [linear_symbol(), mx.sym.BlockGrad(LABEL), mx.sym.BlockGrad(LABEL)],
    ],
)
def test_other_groups_are_refused(outputs, tmp_path):
    bank = build_bank(CLASSES, 0.5, tmp_path)
    with pytest.raises(ValueError, match="symbol has the outputs"):
        build_module(bank, MarginLoss(embedding_size=E), symbol=mx.sym.Group(outputs))


def test_init_optimizer_takes_the_originals_and_modules_arguments(tmp_path):
    calls = [
        lambda module, params: module.init_optimizer(params, False),
        lambda module, params: module.init_optimizer(optimizer_params=params, force_init=True),
        lambda module, params: module.init_optimizer(
            kvstore="local", optimizer="sgd", optimizer_params=tuple(params.items()), force_init=False
        ),
        lambda module, params: module.init_optimizer(optimizer=mx.optimizer.SGD(**params)),
    ]
    results = []
    for call in calls:
        module, params = build(linear_symbol(), tmp_path)
        call(module, params)
        results.append(one_step(module))
    assert all(result == results[0] for result in results[1:])


def test_force_init_replaces_the_optimizer(tmp_path):
    module, params = build(linear_symbol(), tmp_path)
    module.init_optimizer(params)
    module.init_optimizer({**params, "learning_rate": 0.5, "lr_scheduler": None})
    assert backbone(module)._optimizer.learning_rate == 0.1
    module.init_optimizer({**params, "learning_rate": 0.5, "lr_scheduler": None}, True)
    assert backbone(module)._optimizer.learning_rate == 0.5
