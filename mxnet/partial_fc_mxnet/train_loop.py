"""The loop of SampleDistributeModule.fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx

from . import collectives
from .ops import module_arrays
from .passes import passes

Batch = Any  # (epoch, mx.io.DataBatch), or None after the last


class TrainLoop:
    """Trains a module batch by batch, the next one fetched while MXNet still computes.

    Args:
        module: SampleDistributeModule, ready to train.
        train_data: see SampleDistributeModule.fit; it goes on where it stands.
        callbacks: called after every update.
        max_update: the number of updates there shall be in all; None means until the end of this pass.
    """

    def __init__(self, module, train_data, callbacks: Sequence[Callable], max_update: int | None):
        self.module, self.train_data = module, train_data
        self.callbacks, self.max_update = callbacks, max_update
        self._batches = passes(train_data, endless=max_update is not None, first=module.num_epoch)

    def run(self) -> None:
        """Trains, and returns when no update is left and none is on its way."""
        module = self.module
        batch = self._next()
        while batch is not None:
            module.num_epoch, data_batch = batch
            module.prepare(data_batch)
            module.forward_backward(data_batch)
            module.update()
            # MXNet still runs this step's backward pass while Python reads the next batch.
            batch = self._next()
            param = module.batch_end_param(module.loss_cache, module.num_epoch, module.num_update)
            for callback in self.callbacks:
                callback(param)
        self._wait_for_parameters()

    def _next(self) -> Batch:
        module, data = self.module, self.train_data
        module.data_state = data.state() if hasattr(data, "state") else None
        if self.max_update is not None and module.num_update >= self.max_update:
            return None
        start = time.perf_counter()
        batch = next(self._batches, None)
        module.waited_for_data += time.perf_counter() - start
        return batch

    def _wait_for_parameters(self) -> None:
        # The last gradients may still be on their way. A rank that left now would shut Horovod down under them.
        module = self.module._module
        with collectives.waiting("gradients"):
            for arrays in (module_arrays.parameters(module), module_arrays.statistics(module)):
                for array in arrays.values():
                    array.wait_to_read()


def take_parameters_of_rank_0(module: mx.mod.Module, broadcast: Callable[[dict], None]) -> None:
    """Gives every rank the parameters and running statistics of rank 0.

    By way of the host copies: on the CPU a forward pass may have left the module's own arrays in a layout of
    oneDNN's, which Horovod cannot send.
    """
    arg_params, aux_params = module.get_params()
    broadcast({**arg_params, **aux_params})
    module.set_params(arg_params, aux_params)
