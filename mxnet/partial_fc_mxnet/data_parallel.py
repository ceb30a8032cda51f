"""DataParallelModule: the backbone, replicated on every rank; each rank trains its replica on its own images.

Shapes: B local batch, E embedding.
"""

import logging

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.layer.loss_scale import LossScale

from .collectives import default_collectives
from .engine import EngineMethods
from .ops import module_arrays
from .ops.memory import Buffers, rank_context
from .optimizer import DistributedOptimizer, GradientSumSGD
from .updaters import ClippedUpdater, ScaledUpdater


class DataParallelModule(EngineMethods):
    """An ``mx.mod.Module`` on this rank's device, whose gradients Horovod sums over the ranks.

    Collectives of an update: the all-reduces of the gradients, see DistributedOptimizer and, for clipping and float16,
    ClippedUpdater and ScaledUpdater.

    Args:
        symbol: Backbone with one output, or the original trainer's Group, see embedding_symbol.
        logger: Logger of the module.
        max_grad_norm: Maximum norm of the gradients, see ClippedUpdater; 0 disables clipping.
        network: Name of the backbone, which determines the names of PyTorch's arrays; empty for another symbol.
        model_format: Conventions of the symbol and of its momentum.

    Attributes:
        symbol: The backbone, with the embedding as its only output.
        network, model_format: See above.
        size, rank, local_rank: Number of ranks, this rank and its index on its host, from Horovod.
        collectives: Collectives of this process.
        context: Device of this rank.
        loss_scale: LossScale of a backbone with float16 parameters, set by bind; otherwise None.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        logger=logging,
        max_grad_norm: float = 0.0,
        network: str = "",
        model_format: ModelFormat = MXNET,
    ):
        self.network, self.model_format = network, model_format
        self.collectives = default_collectives
        self.size, self.rank, self.local_rank = hvd.size(), hvd.rank(), hvd.local_rank()
        self.context = rank_context(self.local_rank)
        self.symbol = embedding_symbol(symbol)
        self.logger = logger
        self.max_grad_norm = max_grad_norm
        self.loss_scale: LossScale | None = None
        self._buffers = Buffers()
        self._module = mx.mod.Module(self.symbol, ["data"], label_names=None, context=self.context, logger=logger)

    def prepare_training(
        self, train_data, optimizer_params, initializer=None, arg_params=None, aux_params=None
    ) -> None:
        """Binds the module, initializes it, and copies the parameters of rank 0 to all ranks.

        Takes the arguments of ``fit``. Skips the steps that are already done. Restore a checkpoint after this method,
        because each rank restores its own running statistics.
        """
        if not self._module.binded:
            self.bind(train_data.provide_data, for_training=True)
        if not self._module.params_initialized:
            self.init_params(initializer, arg_params, aux_params, allow_missing=True)
        self.init_optimizer(optimizer_params)
        # Broadcast the host copies: on the CPU a forward pass may leave the module's own arrays in a oneDNN layout,
        # which Horovod cannot send.
        arg_params, aux_params = self._module.get_params()
        self.broadcast_parameters({**arg_params, **aux_params})
        self._module.set_params(arg_params, aux_params)

    def bind(self, data_shapes, label_shapes=None, for_training: bool = True, **module_arguments) -> None:
        """Binds the backbone as Module does; label_shapes is ignored, as labels do not pass through the symbol."""
        self._module.bind(data_shapes=data_shapes, label_shapes=None, for_training=for_training, **module_arguments)
        dtypes = {array.dtype for array in module_arrays.parameters(self).values()}
        if np.float16 in dtypes:
            self.loss_scale = self.loss_scale or LossScale(self.output_shape[0])

    @property
    def output_shape(self) -> tuple[int, int]:
        """(B, E) of a bound module."""
        return self._module.output_shapes[0][1]

    def init_params(self, *args, **kwargs) -> None:
        """Initializes the backbone as Module does: copies the given parameters and initializes all others."""
        self._module.init_params(*args, **kwargs)

    def init_optimizer(
        self, optimizer_params=(("learning_rate", 0.01),), force_init: bool = False, *, kvstore=None, optimizer="sgd"
    ) -> None:
        """Wraps the backbone's optimizer in a DistributedOptimizer and installs it.

        Call it as in the original trainer, ``init_optimizer(optimizer_params, force_init)``, or with Module's keywords.
        If an optimizer is already installed and force_init is False, it logs a warning and changes nothing.

        Args:
            optimizer_params: Arguments of the optimizer if ``optimizer`` is a name. Keep the default rescale_grad,
                1 / B, because the feature gradient is already divided by R. multi_precision defaults to True, which
                gives float16 parameters float32 master weights.
            force_init: Whether to replace an optimizer that is already installed.
            kvstore: Ignored, as Horovod sums the gradients.
            optimizer: Name of an MXNet optimizer, or an optimizer.
        """
        if optimizer == "sgd" and self.model_format.momentum_convention == "gradients":
            optimizer = GradientSumSGD.__name__
        if isinstance(optimizer, str):
            names = dict(enumerate(module_arrays.parameter_names(self)))
            params = {"rescale_grad": 1.0 / self._module.data_shapes[0].shape[0], "multi_precision": True}
            params.update(dict(optimizer_params))
            optimizer = mx.optimizer.create(optimizer, sym=self.symbol, param_idx2name=names, **params)
        if not isinstance(optimizer, DistributedOptimizer):
            optimizer = DistributedOptimizer(optimizer)
        previous = self._module._updater
        self._module.init_optimizer(kvstore=None, optimizer=optimizer, force_init=force_init)
        if self._module._updater is previous:
            return
        if self.loss_scale is not None:
            self._module._updater = ScaledUpdater(optimizer, self.loss_scale, self.max_grad_norm, self.logger)
        elif self.max_grad_norm:
            self._module._updater = ClippedUpdater(optimizer, self.max_grad_norm)

    def get_outputs(self, merge_multi_context: bool = True) -> list[mx.nd.NDArray]:
        """Returns the outputs of the last forward, a list of one (B, E)."""
        return self._module.get_outputs(merge_multi_context=merge_multi_context)

    def get_export_params(self) -> tuple[dict[str, mx.nd.NDArray], dict[str, mx.nd.NDArray]]:
        """Returns copies of (arg_params, aux_params) of the backbone on the host, float32."""
        return module_arrays.export(self)

    def prepare(self, data_batch, sparse_row_id_fn=None) -> None:
        """Prepares the module for a batch, as Module does."""
        self._module.prepare(data_batch, sparse_row_id_fn=sparse_row_id_fn)

    def allgather(self, tensor: mx.nd.NDArray, name: str, shape, dtype, context) -> mx.nd.NDArray:
        """Concatenates the ranks' tensors along the first axis; collective: all-gather ``name``.

        Args:
            tensor: This rank's part, of the same shape on every rank.
            name: Name of the collective.
            shape, dtype, context: Of the result.

        Raises:
            ValueError: The result has another shape, because the ranks sent unequal parts.
        """
        gathered = tensor.astype(dtype, copy=False)
        if self.size > 1:
            with self.collectives.waiting(f"all-gather {name}"):
                gathered = hvd.allgather(gathered, name=name)
        if gathered.shape != tuple(shape):
            raise ValueError(
                f"all-gather {name!r} returned {gathered.shape}, expected {tuple(shape)}: the ranks sent unequal parts"
            )
        return gathered.as_in_context(context)

    def get_ndarray(self, context, name: str, shape, dtype=np.float32) -> mx.nd.NDArray:
        """Returns the buffer ``name``, allocated at its first use."""
        return self._buffers.get(context, name, shape, dtype)

    def get_ndarray2(self, context, name: str, arr: mx.nd.NDArray) -> mx.nd.NDArray:
        """Copies ``arr`` into the buffer ``name`` and returns the buffer."""
        return arr.copyto(self._buffers.get(context, name, arr.shape, arr.dtype))

    @staticmethod
    def broadcast_parameters(params) -> None:
        """Overwrites every array of a dict with rank 0's, in place, in the order of the names.

        Collectives: all-reduce ``broadcast.<name>`` for each array.
        """
        if hvd.size() == 1:
            return
        for name in sorted(params):
            # Sum with zeros instead of broadcasting: Horovod 0.28 may read the name of a broadcast after it has been
            # freed, which caused a segmentation fault once in hundreds of starts.
            if hvd.rank() > 0:
                params[name][:] = 0
            hvd.allreduce_(params[name], op=hvd.Sum, name=f"broadcast.{name}")

    def average_statistics(self) -> None:
        """Replaces the running statistics by their mean over the ranks, on every rank.

        Each rank updates them with its own images only; verification and saved models need statistics of all images.

        Collectives: all-reduce ``aux.<name>`` for each statistic.
        """
        statistics = module_arrays.statistics(self)
        if self.size == 1:
            return
        for name, array in sorted(statistics.items()):
            hvd.allreduce_(array, op=hvd.Average, name=f"aux.{name}")
        self._module._params_dirty = True

    def wait_for_update(self) -> None:
        """Waits until the last update is complete: a rank that exits before its end would shut down Horovod."""
        with self.collectives.waiting("gradients"):
            for arrays in (module_arrays.parameters(self), module_arrays.statistics(self)):
                for array in arrays.values():
                    array.wait_to_read()


def embedding_symbol(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Returns the embedding of a backbone symbol, without the label that the original's symbol contains.

    A label in a symbol would be float32, which cannot represent all classes above 2^24, so labels never pass through
    the symbol. Raises ValueError unless the output is one embedding or the original's
    ``Group([embedding, BlockGrad(label)])``.
    """
    outputs = symbol.list_outputs()
    if len(outputs) == 1:
        return symbol
    embedding, label_inputs = symbol[0], symbol[1].list_arguments()
    if len(outputs) == 2 and len(label_inputs) == 1 and label_inputs[0] not in embedding.list_arguments():
        return embedding
    raise ValueError(
        f"symbol has the outputs {outputs}, expected one embedding (B, E) or Group([embedding, BlockGrad(label)])"
    )
