"""SampleDistributeModule: a data-parallel backbone under a model-parallel classification layer.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, L classes of this rank,
S sampled classes of this rank.
"""

from __future__ import annotations

import logging
import math
from collections import namedtuple

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.layer.label_encoding import DIGITS, RankFlags, decode_labels, encode_labels
from partial_fc.layer.loss_scale import LossScale
from partial_fc.layer.tiling import LOGITS_CACHE_MB

from . import collectives
from .layer.class_layer import ClassLayer
from .layer.clipped_updater import ClippedUpdater
from .layer.scaled_updater import ScaledUpdater
from .memory_bank import MemoryBank
from .ops import module_arrays
from .ops.buffers import Buffers
from .ops.device import rank_context
from .ops.host_memory import host_array
from .optimizer import DistributedOptimizer, MemoryBankSGDOptimizer
from .train_loop import TrainLoop, take_parameters_of_rank_0

BatchEndParam = namedtuple("BatchEndParam", ["loss", "num_epoch", "num_update"])

Labels = np.ndarray | mx.nd.NDArray


class SampleDistributeModule:
    """Trains a backbone with Partial FC.

    Collectives of a step, in the order they run:
        1. all-gather ``features``: (B, E + 2) -> (G, E + 2), the features and the digits of the labels;
        2. all-gather ``softmax_statistics``: (3, G) -> (3R, G), maximum, sum and target of every row;
        3. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    The backbone's gradients follow, see DistributedOptimizer and, clipped or in float16, ClippedUpdater and
    ScaledUpdater. ``shards`` (an all-gather of L and B) runs once, at bind, and ``broadcast.<name>`` for each
    parameter once, at the start of fit.

    Args:
        symbol: the backbone, with data ``data`` and one output (B, E) float32; some of its parameters may be float16.
        fc7_model: MarginLoss, or any object with its ``forward``, which then is differentiated by autograd.
        memory_bank: MemoryBank of this rank.
        memory_optimizer: updates its rows.
        logger: where the module reports.
        tile_classes, logits_cache_mb: how the layer walks through its centers, see TiledMarginSoftmax.
        max_grad_norm: what the backbone's gradients are clipped at, see ClippedUpdater; 0 clips nothing.

    Attributes:
        size, rank, local_rank: R and this rank's numbers, from Horovod.
        num_classes: C, the sum of the ranks' L, from bind on.
        num_update: updates done.
        num_epoch: passes over the data that are complete.
        waited_for_data: seconds that fit has waited for the next batch so far.
        data_state: the ``state()`` of fit's iterator after the batch of the update that callbacks are told of, to go
            on from; fit has taken the next batch already. None for an iterator without one.
        rank_flags: RankFlags of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
        memory_lr: learning rate of the class centers in the step that ran last.
        loss_scale: LossScale of a backbone with float16 parameters, from bind on; else None.
        loss_cache: (1,) float32, loss of the global batch of that step.
        grad_cache: (G, E) float32, this rank's summand of the feature gradient of that step.
        batch_end_param: ``batch_end_param(loss, num_epoch, num_update)`` makes what callbacks are handed.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        fc7_model,
        memory_bank: MemoryBank,
        memory_optimizer: MemoryBankSGDOptimizer,
        logger=logging,
        *,
        tile_classes: int = 0,
        logits_cache_mb: int = LOGITS_CACHE_MB,
        max_grad_norm: float = 0.0,
    ):
        self.size, self.rank, self.local_rank = hvd.size(), hvd.rank(), hvd.local_rank()
        self.symbol = symbol
        self.fc7_model = fc7_model
        self.memory_bank = memory_bank
        self.memory_optimizer = memory_optimizer
        self.logger = logger
        self.max_grad_norm = max_grad_norm
        self.context = rank_context(self.local_rank)
        self.batch_end_param = BatchEndParam
        self.num_update = 0
        self.num_epoch = 0
        self.waited_for_data = 0.0
        self.data_state = None
        self.rank_flags = RankFlags(0)
        self.all_rank_flags = np.zeros(self.size, np.int64)
        self.memory_lr = None
        self.loss_scale = None
        self.grad_cache = None
        self._buffers = Buffers()
        self.loss_cache = self.get_ndarray(self.context, "loss_cache", (1,))
        self._layer = ClassLayer(fc7_model, memory_bank, self.context, tile_classes, logits_cache_mb)
        self.num_classes = None
        self._statistics = None
        # The label never enters the symbol: only this module's all-gather reads it.
        self._module = mx.mod.Module(symbol, data_names=["data"], label_names=None, context=self.context, logger=logger)

    # The Module's own meaning -----------------------------------------------------------------------

    def bind(self, data_shapes, label_shapes=None, for_training: bool = True, **module_arguments) -> None:
        """Binds the backbone, and settles with the other ranks which classes live where.

        Takes what Module.bind does; labels are not the symbol's, so label_shapes is not used.

        Raises:
            ValueError: the ranks' batch sizes differ, the banks do not follow one another, or the backbone's
                output is not (B, E) of the bank.
        """
        collectives.run_on_all_ranks("bind", lambda: self._bind(data_shapes, for_training, module_arguments))
        self._settle_shards()

    def init_params(self, *args, **kwargs) -> None:
        """Initialises the backbone, as Module does: what is given is taken, the rest comes from the initializer."""
        self._module.init_params(*args, **kwargs)

    def init_optimizer(
        self, *, kvstore=None, optimizer="sgd", optimizer_params=(("learning_rate", 0.01),), force_init=False
    ) -> None:
        """Installs the backbone's optimizer, as Module does, under a DistributedOptimizer.

        Args:
            kvstore: not used, Horovod sums the gradients.
            optimizer: its name, or an optimizer.
            optimizer_params: its arguments where it is named. rescale_grad should be 1 / B, which is what it is
                if left out: the feature gradient already is divided by R. Left out, multi_precision is True: float16
                parameters then have float32 master weights.
            force_init: as in Module.
        """
        if isinstance(optimizer, str):
            names = dict(enumerate(self._module._exec_group.param_names))
            params = {"rescale_grad": 1.0 / self._module.data_shapes[0].shape[0], "multi_precision": True}
            params.update(dict(optimizer_params))
            optimizer = mx.optimizer.create(optimizer, sym=self.symbol, param_idx2name=names, **params)
        if not isinstance(optimizer, DistributedOptimizer):
            optimizer = DistributedOptimizer(optimizer)
        before = self._module._updater
        self._module.init_optimizer(kvstore=None, optimizer=optimizer, force_init=force_init)
        if self._module._updater is not before:  # else it was initialised already
            self._module._updater = self._updater(optimizer)

    def get_outputs(self, merge_multi_context: bool = True):
        """Outputs of the last forward, a list of one (B, E)."""
        return self._module.get_outputs(merge_multi_context=merge_multi_context)

    def embed(self, images: mx.nd.NDArray, batch_statistics: bool = False) -> np.ndarray:
        """Embeds a batch without training on it.

        Args:
            images: (B, ...) as ``data`` is bound.
            batch_statistics: embeds in training mode: normalises by the statistics of this batch instead of the running
                ones, which stay as they are, and applies dropout.

        Returns:
            (B, E) float32.
        """
        kept = {}
        if batch_statistics:
            running = module_arrays.statistics(self._module)
            kept = {name: array.copy() for name, array in running.items()}
        self._module.forward(mx.io.DataBatch([images]), is_train=batch_statistics)
        embeddings = self.get_outputs()[0].asnumpy()
        for name, array in kept.items():  # cuDNN's batch norm changes them in a forward pass
            running[name][:] = array
        return embeddings

    def get_export_params(self):
        """(arg_params, aux_params) of the backbone, float32, copied to the host."""
        return module_arrays.export(self._module)

    def prepare(self, data_batch, sparse_row_id_fn=None) -> None:
        """Makes the module ready for a batch, as Module does."""
        self._module.prepare(data_batch, sparse_row_id_fn=sparse_row_id_fn)

    # Training ---------------------------------------------------------------------------------------

    def fit(
        self,
        train_data,
        optimizer_params,
        batch_end_callback,
        initializer,
        arg_params=None,
        aux_params=None,
        *,
        max_update: int | None = None,
        saved=None,
    ) -> None:
        """Trains, and returns.

        Args:
            train_data: an iterator of batches of B images and B integer labels; it is reset at each end of data.
            optimizer_params: arguments of MXNet's SGD, see init_optimizer.
            batch_end_callback: one callable, a list, or None; called with batch_end_param after every update.
            initializer: for the parameters that arg_params and aux_params do not give.
            max_update: the number of updates there shall be in all, exactly; None means one pass over train_data.
            saved: SavedTraining to go on from.
        """
        self.prepare_training(train_data, optimizer_params, initializer, arg_params, aux_params)
        if saved is not None:
            saved.restore(self, train_data)
        callbacks = batch_end_callback or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        self.run_updates(train_data, callbacks, max_update)

    def prepare_training(
        self, train_data, optimizer_params, initializer=None, arg_params=None, aux_params=None
    ) -> None:
        """Does what fit does before the first update: binds, initializes, and gives every rank rank 0's parameters.

        What is bound or initialized already stays as it is. A checkpoint is restored after this method, because each
        rank restores its own running statistics. Arguments: see fit.
        """
        if not self._module.binded:
            self.bind(train_data.provide_data, for_training=True)
        if not self._module.params_initialized:
            self.init_params(initializer, arg_params, aux_params, allow_missing=True)
        self.init_optimizer(optimizer_params=optimizer_params)
        take_parameters_of_rank_0(self._module, self.broadcast_parameters)

    def run_updates(self, train_data, callbacks, max_update: int | None = None) -> None:
        """Trains until ``num_update`` is ``max_update``, after prepare_training; None means one pass over the data."""
        TrainLoop(self, train_data, callbacks, max_update).run()

    def forward(self, data_batch, is_train: bool | None = None) -> tuple[mx.nd.NDArray, mx.nd.NDArray] | None:
        """Runs the backbone; in training also gathers its features.

        Returns:
            In training (total_features (G, E) float32, total_labels (G,) int64 on the CPU), else None.

        Raises:
            ValueError: a label is not one of the classes.
        """
        self._module.forward(data_batch, is_train=is_train)
        if not (self._module.for_training if is_train is None else is_train):
            return None
        return self._gather_features(self.get_outputs()[0], data_batch.label[0])

    def forward_backward(self, data_batch) -> None:
        """Forward, the classification layer with its update of the centers, and the backbone's backward."""
        total_features, total_labels = self.forward(data_batch, is_train=True)
        self.backward_all(total_features, total_labels)

    def backward_all(self, total_feature: mx.nd.NDArray, total_label: Labels) -> None:
        """From the gathered features to the backbone's gradients."""
        self.grad_cache, loss = self.backward_sample(total_feature, total_label)
        self.loss_cache[:] = loss
        gradient = self.grad_cache
        if self.size > 1:
            with collectives.waiting("reduce-scatter feature_gradient"):
                gradient = hvd.reducescatter(gradient, op=hvd.Sum, name="feature_gradient") / self.size
        if self.loss_scale is not None:
            gradient = gradient * self.loss_scale.factor
        self._module.backward(out_grads=[gradient])

    def backward(self, total_feature: mx.nd.NDArray, total_label: Labels) -> tuple[mx.nd.NDArray, float]:
        """The layer with every class: as backward_sample, with nothing drawn."""
        return self._layer_step(total_feature, _host(total_label), np.arange(self.memory_bank.num_local))

    def backward_sample(self, total_feature: mx.nd.NDArray, total_label: Labels) -> tuple[mx.nd.NDArray, float]:
        """The layer with the classes that ``memory_bank.sample`` draws, whose centers it updates.

        Args:
            total_feature: (G, E) float32.
            total_label: (G,) integers.

        Returns:
            (dX (G, E), this rank's summand of the feature gradient of the summed loss; mean loss).

        Raises:
            MissingPositiveError: on every rank, where a label's center is not among the drawn ones.
            FloatingPointError: on every rank, where the loss is not a number; no center has changed.
        """
        total_label = _host(total_label)
        local_index, _ = self.memory_bank.sample(total_label)
        return self._layer_step(total_feature, total_label, local_index)

    def update(self) -> None:
        """Sums the backbone's gradients over the ranks and updates it; the centers are already updated.

        Where float16 overflowed, the backbone stays as it is on every rank. The centers keep their update: it is
        that of finite features in float32.

        Raises:
            FloatingPointError: on every rank, where that happened many times in a row.
        """
        self._module.update()
        self.num_update += 1

    # Arrays and collectives -------------------------------------------------------------------------

    def allgather(self, tensor: mx.nd.NDArray, name: str, shape, dtype, context) -> mx.nd.NDArray:
        """Concatenates ``tensor`` of all ranks along the first axis.

        Args:
            tensor: this rank's part, the same shape on every rank.
            name: of the collective.
            shape, dtype, context: of the result.

        Raises:
            ValueError: the result has another shape, so a rank sent a part of another size.
        """
        gathered = tensor.astype(dtype, copy=False)
        if self.size > 1:
            with collectives.waiting(f"all-gather {name}"):
                gathered = hvd.allgather(gathered, name=name)
        if gathered.shape != tuple(shape):
            raise ValueError(f"all-gather {name!r} gave {gathered.shape}, not {tuple(shape)}: ranks sent unequal parts")
        return gathered.as_in_context(context)

    def get_ndarray(self, context, name: str, shape, dtype=np.float32) -> mx.nd.NDArray:
        """The buffer of that name, allocated at its first use."""
        return self._buffers.get(context, name, shape, dtype)

    def get_ndarray2(self, context, name: str, arr: mx.nd.NDArray) -> mx.nd.NDArray:
        """The buffer of that name, with ``arr`` copied into it."""
        return arr.copyto(self._buffers.get(context, name, arr.shape, arr.dtype))

    @staticmethod
    def broadcast_parameters(params) -> None:
        """Overwrites every array of a dict with rank 0's, in place, in the order of their names."""
        if hvd.size() == 1:
            return
        for name in sorted(params):
            hvd.broadcast_(params[name], root_rank=0, name=f"broadcast.{name}")

    def average_aux(self) -> None:
        """Makes the backbone's running statistics their mean over the ranks, on every rank.

        Each rank keeps those of its own images; a model that is verified or saved should know them all.
        Collectives: all-reduce ``aux.<name>`` for each.
        """
        if self.size == 1:
            module_arrays.settle()
            return
        for name, array in sorted(module_arrays.statistics(self._module).items()):
            hvd.allreduce_(array, op=hvd.Average, name=f"aux.{name}")
        self._module._params_dirty = True

    # Inside -----------------------------------------------------------------------------------------

    def _updater(self, optimizer: DistributedOptimizer) -> mx.optimizer.Updater:
        if self.loss_scale is not None:
            return ScaledUpdater(optimizer, self.loss_scale, self.max_grad_norm, self.logger)
        if self.max_grad_norm:
            return ClippedUpdater(optimizer, self.max_grad_norm)
        return self._module._updater

    def _bind(self, data_shapes, for_training: bool, module_arguments: dict) -> None:
        self._module.bind(data_shapes=data_shapes, label_shapes=None, for_training=for_training, **module_arguments)
        embedding_size = self._module.output_shapes[0][1][1]
        if embedding_size != self.memory_bank.embedding_size:
            raise ValueError(
                f"the backbone gives embeddings of {embedding_size}, the memory bank holds centers of "
                f"{self.memory_bank.embedding_size}: both must be the same embedding_size"
            )
        if any(array.dtype == np.float16 for array in module_arrays.parameters(self._module).values()):
            self.loss_scale = self.loss_scale or LossScale(self._module.output_shapes[0][1][0])

    def _settle_shards(self) -> None:
        bank, batch = self.memory_bank, self._module.output_shapes[0][1][0]
        mine = mx.nd.array([[bank.num_local, batch]], dtype=np.int64)
        shards = self.allgather(mine, "shards", (self.size, 2), np.int64, mx.cpu()).asnumpy()
        if (shards[:, 1] != batch).any():
            raise ValueError(f"the ranks' batch sizes are {shards[:, 1].tolist()}: give every rank the same batch_size")
        start = int(shards[: self.rank, 0].sum())
        self.num_classes = int(shards[:, 0].sum())
        if start != bank.class_start:
            raise ValueError(
                f"this rank's bank starts at class {bank.class_start}, but the ranks before it hold {start} classes: "
                "give MemoryBank that class_start, or none"
            )

    def _gather_features(self, features, labels):
        digits = encode_labels(_host(labels), self.num_classes, self.rank_flags)
        batch, width = features.shape
        packed = self.get_ndarray(self.context, "features", (batch, width + DIGITS))
        packed[:, :width] = features
        packed[:, width:] = digits
        shape = (batch * self.size, width + DIGITS)
        total = self.allgather(packed, "features", shape, np.float32, self.context)
        total_labels, self.all_rank_flags = decode_labels(total[:, width:].asnumpy(), self.size)
        return mx.nd.slice_axis(total, axis=1, begin=0, end=width), mx.nd.array(total_labels, dtype=np.int64)

    def _layer_step(self, total_feature, total_label, local_index):
        self.memory_lr = self.memory_optimizer.lr_scheduler(self.num_update + 1)
        softmax = self._layer.forward(total_feature, total_label, local_index, self._exchange)
        self._check_loss(softmax.loss, total_feature)  # before any center is touched
        d_feature = self._layer.backward(softmax, self.memory_optimizer, self.memory_lr)
        return mx.nd.zeros_like(total_feature) if d_feature is None else d_feature, softmax.loss

    def _exchange(self, statistics: np.ndarray) -> np.ndarray:
        shape = (self.size * len(statistics), statistics.shape[1])
        mine = host_array(statistics.astype(np.float32))
        self._statistics = self.allgather(mine, "softmax_statistics", shape, np.float32, mx.cpu()).asnumpy()
        return self._statistics

    def _check_loss(self, loss: float, total_feature: mx.nd.NDArray) -> None:
        if math.isfinite(loss):
            return
        what, numbers = "features", total_feature.asnumpy()
        if np.isfinite(numbers).all():
            what, numbers = "centers", self._statistics
        # Infinities belong to the statistics of a rank without centers.
        wrong = ~np.isfinite(numbers) if what == "features" else np.isnan(numbers)
        ranks = np.flatnonzero(wrong.reshape(self.size, -1).any(axis=1)).tolist()
        where = f"it is in the {what} of rank {', '.join(map(str, ranks)) or 'no single one'}"
        raise FloatingPointError(
            f"the loss is {loss} at update {self.num_update + 1} ({where}): lower lr, set warmup_steps or "
            "max_grad_norm, or look for broken images" + (", or set fp16=False" if self.loss_scale else "")
        )


def _host(labels: Labels) -> np.ndarray:
    labels = labels.asnumpy() if isinstance(labels, mx.nd.NDArray) else np.asarray(labels)
    return labels.astype(np.int64, copy=False)
