"""The MXNet trainer's module and bank for a case of the planner, used by planner_check.py and layer_mxnet.py."""

import horovod.mxnet as hvd
import mxnet as mx

from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer, SampleDistributeModule, get_scheduler
from partial_fc_mxnet.symbol import get_symbol
from partial_fc_tools.planner import Case


def build_bank(case: Case, folder: str | None = None) -> MemoryBank:
    """Returns this rank's bank, in memory or in files in a folder."""
    shard = shard_of(case.classes, hvd.rank(), hvd.size())
    sampled, own = num_sampled(shard.size, case.ratio), (hvd.rank(), hvd.local_rank())
    options = {"gpu": False, "folder": folder, "class_start": shard.start}
    return MemoryBank(sampled, shard.size, *own, case.embedding, "", **options)


def build_module(
    case: Case, bank: MemoryBank, image_shape: tuple[int, ...], kind: type = SampleDistributeModule
) -> SampleDistributeModule:
    """Returns a module of class ``kind`` with the network, or with a small FullyConnected."""
    backbone, memory = get_scheduler([], 0.1, 0.1)
    if case.network:
        symbol = get_symbol(case.network, case.embedding)
    else:
        symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=case.embedding, name="fc1")
    optimizer = MemoryBankSGDOptimizer(memory, 1.0 / (case.batch * hvd.size()))
    loss = MarginLoss((1.0, 0.0, 0.4), 64, case.embedding)
    tiling = {"tile_classes": case.tile_classes, "logits_cache_mb": case.logits_cache_mb}
    module = kind(symbol, loss, bank, optimizer, **tiling)
    module.bind([mx.io.DataDesc("data", (case.batch, *image_shape))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "lr_scheduler": backbone, "momentum": 0.9})
    return module
