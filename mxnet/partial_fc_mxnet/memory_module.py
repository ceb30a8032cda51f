"""SampleDistributeModule: a data-parallel backbone under a model-parallel classification layer.

A batch passes through this file from top to bottom: fit, step, forward (the backbone, then the all-gather of features
and labels), backward_all (the layer, which also updates its centers, then the backbone), update (the backbone).

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of this rank,
S sampled classes of this rank.
"""

import logging
import math
from typing import TypeAlias

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.layer.label_encoding import DIGITS, RankFlags, check_labels, decode_labels, encode_labels
from partial_fc.layer.nonfinite import nonfinite_loss
from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.training.loop import BatchEndParam, LoopState, updates

from .data_parallel import DataParallelModule
from .layer.class_layer import ClassLayer
from .memory_bank import MemoryBank
from .ops.memory import host_array
from .optimizer import MemoryBankSGDOptimizer

Labels: TypeAlias = np.ndarray | mx.nd.NDArray


class SampleDistributeModule(DataParallelModule):
    """Trains a backbone with Partial FC.

    Collectives of a step, in the order they run:
        1. all-gather ``features``: (B, E + 2) -> (G, E + 2), the features, labels and rank flags;
        2. all-gather ``softmax_statistics``: (3, G) -> (3R, G), maximum, sum and target of every row;
        3. reduce-scatter ``feature_gradient``: (G, E) -> (B, E), the sum over the ranks.
    The all-reduces of the backbone's gradients follow, see DataParallelModule. ``shards``, an all-gather of L and B,
    runs once in bind; ``broadcast.<name>`` runs once for each parameter at the start of fit.

    Args:
        symbol: The backbone with input ``data`` and one output (B, E) float32, or the original's
            ``Group([embedding, BlockGrad(label)])``, whose label is ignored. Parameters may be float16.
        fc7_model: MarginLoss, or any object with the same ``forward``, which autograd then differentiates.
        memory_bank: MemoryBank with the class centers of this rank.
        memory_optimizer: Updates the centers.
        logger: Logger of the module.
        tile_classes, logits_cache_mb: See TiledMarginSoftmax.
        max_grad_norm, network, model_format: See DataParallelModule.

    Attributes:
        symbol, size, rank, local_rank, collectives, context, loss_scale, network, model_format: See DataParallelModule.
        num_classes: C, the sum of the ranks' L; set by bind.
        num_update: Number of completed updates.
        loop: LoopState of fit; ``loop.data_state`` is the iterator's position to resume from.
        rank_flags: RankFlags of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
        memory_lr: Learning rate of the class centers in the last step.
        loss_cache: (1,) float32, mean loss over the global batch of the last step.
        grad_cache: (G, E) float32, this rank's summand of the feature gradient of the last step.
        batch_end_param: ``batch_end_param(loss, num_epoch, num_update)`` creates the argument of callbacks.

    Raises:
        ValueError: The symbol has other outputs.
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
        network: str = "",
        model_format: ModelFormat = MXNET,
    ):
        super().__init__(symbol, logger, max_grad_norm, network, model_format)
        self.fc7_model = fc7_model
        self.memory_bank = memory_bank
        self.memory_optimizer = memory_optimizer
        self.batch_end_param = BatchEndParam
        self.num_classes: int | None = None
        self.num_update = 0
        self.loop = LoopState()
        self.rank_flags = RankFlags(0)
        self.all_rank_flags = np.zeros(self.size, np.int64)
        self.memory_lr: float | None = None
        self.grad_cache: mx.nd.NDArray | None = None
        self.loss_cache = self.get_ndarray(self.context, "loss_cache", (1,))
        self._statistics = np.empty((0, 0), np.float32)
        self._layer = ClassLayer(fc7_model, memory_bank, self.context, tile_classes, logits_cache_mb)

    @property
    def banks(self) -> dict[str, MemoryBank]:
        """See Engine; this trainer has one head."""
        return {"": self.memory_bank}

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
        """Trains for a total of ``max_update`` updates and returns when the last one is complete.

        Args:
            train_data: Iterator over batches of B images and B integer labels; fit resets it at the end of each epoch.
            optimizer_params: Arguments of MXNet's SGD, see init_optimizer.
            batch_end_callback: One callable, a list, or None; called with batch_end_param after every update.
            initializer: Initializes the parameters that arg_params and aux_params do not contain.
            arg_params, aux_params: Initial parameters and running statistics by name, or None.
            max_update: Total number of updates; None trains for one epoch.
            saved: SavedTraining to resume from, or None.
        """
        self.prepare_training(train_data, optimizer_params, initializer, arg_params, aux_params)
        if saved is not None:
            saved.restore(self, train_data)
        callbacks = batch_end_callback or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        for param in updates(self, train_data, self.loop, max_update, self.batch_end_param):
            for callback in callbacks:
                callback(param)

    def step(self, data_batch) -> mx.nd.NDArray:
        """Trains on one batch and returns ``loss_cache``, without waiting for the update of the backbone."""
        self.prepare(data_batch)
        self.forward_backward(data_batch)
        self.update()
        return self.loss_cache

    def forward_backward(self, data_batch) -> None:
        """Runs the forward pass, the classification layer with its update, and the backbone's backward pass."""
        gathered = self.forward(data_batch, is_train=True)
        assert gathered is not None, "forward gathers in training"
        self.backward_all(*gathered)

    def forward(self, data_batch, is_train: bool | None = None) -> tuple[mx.nd.NDArray, mx.nd.NDArray] | None:
        """Runs the backbone; in training also gathers its features and the labels from all ranks.

        Returns:
            In training (total_features (G, E) float32, total_labels (G,) int64 on the CPU), else None.

        Raises:
            ValueError: A label is not in 0..C-1.
        """
        self._module.forward(data_batch, is_train=is_train)
        if not (self._module.for_training if is_train is None else is_train):
            return None
        features, labels = self.get_outputs()[0], _to_numpy(data_batch.label[0])
        assert self.num_classes is not None, "the module must be bound before forward"
        batch, width = features.shape
        check_labels(labels, self.num_classes)
        packed = self.get_ndarray(self.context, "features", (batch, width + DIGITS))
        packed[:, :width] = features
        packed[:, width:] = encode_labels(labels.astype(np.int64), self.rank_flags).astype(np.float32)
        total = self.allgather(packed, "features", (batch * self.size, width + DIGITS), np.float32, self.context)
        digits = total[:, width:].asnumpy().astype(np.int64)
        total_labels, self.all_rank_flags = decode_labels(digits, self.size)
        return mx.nd.slice_axis(total, axis=1, begin=0, end=width), mx.nd.array(total_labels, dtype=np.int64)

    def backward_all(self, total_feature: mx.nd.NDArray, total_label: Labels) -> None:
        """Computes the backbone's gradients from the gathered features (G, E) and labels (G,)."""
        gradient, loss = self.backward_sample(total_feature, total_label)
        self.grad_cache = gradient
        self.loss_cache[:] = loss
        if self.size > 1:
            with self.collectives.waiting("reduce-scatter feature_gradient"):
                # The backbone's rescale_grad divides by B, and the mean loss is over B * R.
                gradient = hvd.reducescatter(gradient, op=hvd.Sum, name="feature_gradient") / self.size
        if self.loss_scale is not None:
            gradient = gradient * self.loss_scale.factor
        self._module.backward(out_grads=[gradient])

    def backward_sample(self, total_feature: mx.nd.NDArray, total_label: Labels) -> tuple[mx.nd.NDArray, float]:
        """Runs the layer with the classes that ``memory_bank.sample`` selects, and updates their centers.

        Args:
            total_feature: (G, E) float32.
            total_label: (G,) integers.

        Returns:
            (this rank's summand (G, E) of the feature gradient of the summed loss, mean loss).

        Raises:
            MissingPositiveError: On every rank, if the center of a label is not selected.
            FloatingPointError: On every rank, if the loss is infinite or NaN; no center has changed.
        """
        total_label = _to_numpy(total_label)
        local_index, _ = self.memory_bank.sample(total_label)
        result = self._train_layer(total_feature, total_label, local_index)
        self.memory_bank.prefetch()
        return result

    def backward(self, total_feature: mx.nd.NDArray, total_label: Labels) -> tuple[mx.nd.NDArray, float]:
        """Runs the layer with every class; otherwise the same as backward_sample."""
        return self._train_layer(total_feature, _to_numpy(total_label), np.arange(self.memory_bank.num_local))

    def _train_layer(self, total_feature, total_label: np.ndarray, local_index: np.ndarray):
        self.memory_lr = learning_rate = self.memory_optimizer.lr_scheduler(self.num_update + 1)
        softmax = self._layer.forward(total_feature, total_label, local_index, self._gather_statistics)
        if not math.isfinite(softmax.loss):  # no center has changed yet
            statistics = self._statistics.reshape(self.size, 3, -1)
            values = total_feature.asnumpy(), statistics, self.loss_scale is not None
            raise nonfinite_loss(softmax.loss, self.num_update + 1, *values)
        d_feature = self._layer.backward(softmax, self.memory_optimizer, learning_rate)
        return mx.nd.zeros_like(total_feature) if d_feature is None else d_feature, softmax.loss

    def _gather_statistics(self, statistics: np.ndarray) -> np.ndarray:
        shape = (self.size * len(statistics), statistics.shape[1])
        local = host_array(statistics.astype(np.float32))
        self._statistics = self.allgather(local, "softmax_statistics", shape, np.float32, mx.cpu()).asnumpy()
        return self._statistics

    def update(self) -> None:
        """Sums the backbone's gradients over the ranks and updates it; the centers are already updated.

        After a float16 overflow the backbone remains unchanged on every rank. The centers keep their update, which is
        computed in float32 from finite features.

        Raises:
            FloatingPointError: On every rank, after too many overflows in a row.
        """
        self._module.update()
        self.num_update += 1

    def bind(self, data_shapes, label_shapes=None, for_training: bool = True, **module_arguments) -> None:
        """Binds the backbone and gathers the number of classes of every rank.

        Takes the arguments of Module; label_shapes is ignored, as labels do not pass through the symbol.

        Raises:
            ValueError: The ranks' batch sizes differ, the banks do not follow each other, or the backbone's
                output is not (B, E) of the bank.
        """
        self.collectives.run_on_all_ranks("bind", lambda: self._bind(data_shapes, for_training, module_arguments))
        bank, batch = self.memory_bank, self.output_shape[0]
        local = mx.nd.array([[bank.num_local, batch]], dtype=np.int64)
        shards = self.allgather(local, "shards", (self.size, 2), np.int64, mx.cpu()).asnumpy()
        if (shards[:, 1] != batch).any():
            raise ValueError(f"the ranks' batch sizes are {shards[:, 1].tolist()}: set the same batch_size on all")
        start = int(shards[: self.rank, 0].sum())
        self.num_classes = int(shards[:, 0].sum())
        if start != bank.class_start:
            raise ValueError(
                f"the memory bank of rank {self.rank} starts at class {bank.class_start}, but the ranks before it hold "
                f"{start} classes: pass class_start={start} to MemoryBank, or none"
            )

    def _bind(self, data_shapes, for_training: bool, module_arguments: dict) -> None:
        super().bind(data_shapes, for_training=for_training, **module_arguments)
        if self.output_shape[1] != self.memory_bank.embedding_size:
            raise ValueError(
                f"the backbone has embeddings of {self.output_shape[1]}, the memory bank holds centers of "
                f"{self.memory_bank.embedding_size}: both must have the same embedding_size"
            )


def _to_numpy(labels: Labels) -> np.ndarray:
    labels = labels.asnumpy() if isinstance(labels, mx.nd.NDArray) else np.asarray(labels)
    return labels.astype(np.int64, copy=False)
