"""A small Partial FC on a linear backbone, with the same results at any number of ranks.

Shapes: G global batch, D inputs, E embedding, C classes.
"""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer, SampleDistributeModule, get_scheduler

G, D, E = 6, 8, 4


class Batches(mx.io.DataIter):
    """Iterates over this rank's parts of global batches: images (steps, G, D), labels (steps, G)."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        super().__init__(G // hvd.size())
        self.provide_data = [mx.io.DataDesc("data", (self.batch_size, images.shape[2]))]
        self.reset()

    def reset(self):
        self.step = -1

    def next(self):
        self.step += 1
        if self.step == len(self.images):
            raise StopIteration
        local = slice(hvd.rank() * self.batch_size, (hvd.rank() + 1) * self.batch_size)
        data = mx.nd.array(self.images[self.step, local])
        return mx.io.DataBatch([data], [mx.nd.array(self.labels[self.step, local], dtype="int64")])


def random_batches(classes, steps, seed=0):
    """Returns global batches (steps, G, D) float32 and labels (steps, G) over all classes."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((steps, G, D)).astype(np.float32), rng.integers(0, classes, (steps, G))


def linear_symbol():
    """Returns a linear backbone with a bias, D -> E."""
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=E, name="fc1", flatten=True)


def build_bank(classes, ratio, prefix, embedding_size=E, **options):
    """Returns this rank's bank for a total of `classes` classes."""
    shard = shard_of(classes, hvd.rank(), hvd.size())
    sampled = num_sampled(shard.size, ratio)
    return MemoryBank(sampled, shard.size, hvd.rank(), hvd.local_rank(), embedding_size, str(prefix), **options)


def build_module(bank, loss, lr=0.1, symbol=None, **options):
    """Returns the module over the linear backbone, or another symbol, and the parameters of its optimizer."""
    backbone, memory = get_scheduler([], lr, lr)
    symbol = linear_symbol() if symbol is None else symbol
    module = SampleDistributeModule(symbol, loss, bank, MemoryBankSGDOptimizer(memory, 1 / G), **options)
    params = {"learning_rate": lr, "lr_scheduler": backbone, "momentum": 0.9, "wd": 5e-4}
    return module, {**params, "rescale_grad": hvd.size() / G}


def ready_module(bank, loss, lr=0.1, symbol=None, arg_params=None, aux_params=None, **options):
    """Returns the module with its parameters, by default initial_params(), and its optimizer."""
    module, params = build_module(bank, loss, lr, symbol, **options)
    module.bind([mx.io.DataDesc("data", (G // hvd.size(), D))])
    module.init_params(mx.init.Xavier(), arg_params or initial_params(), aux_params or {}, allow_missing=True)
    module.init_optimizer(optimizer_params=params)
    return module


def initial_params(seed=1):
    """Returns weights of the linear backbone."""
    rng = np.random.default_rng(seed)
    return {
        "fc1_weight": mx.nd.array(rng.standard_normal((E, D)) * 0.3),
        "fc1_bias": mx.nd.array(rng.standard_normal(E) * 0.3),
    }


def fit(module, params, batches, steps):
    """Trains until `steps` updates are done and returns the loss of each."""
    losses = []

    def append_loss(param):
        losses.append(float(param.loss.asscalar()))

    module.fit(batches, params, append_loss, mx.init.Xavier(), initial_params(), {}, max_update=steps)
    return losses


def all_ranks(array, name):
    """Concatenates the arrays of all ranks, which may have different lengths."""
    return np.concatenate(hvd.allgather_object(array, name=name)) if hvd.size() > 1 else array


class OnlyForward:
    """A custom loss with only the textbook method."""

    def __init__(self, margins, scale):
        self.inner = MarginLoss(margins, scale, E)

    def forward(self, data, weight, mapping_label, depth):
        return self.inner.forward(data, weight, mapping_label=mapping_label, depth=depth)
