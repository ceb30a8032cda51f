"""The backbone and the class centers, saved while training: called on every rank, like all callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable

import mxnet as mx

from partial_fc.checkpoint import replace_file
from partial_fc.checkpoint.mxnet_params import array_file_chunks

from . import collectives
from .onnx_export import OnnxExport

ONNX_NAME = "backbone.onnx"


class Every:
    """Calls ``action(num_update)`` every so many updates, and never twice at the same one."""

    def __init__(self, frequent: int, action: Callable[[int], object]):
        self.frequent = frequent
        self.action = action
        self._done: int | None = None

    def __call__(self, num_update: int) -> None:
        if num_update % self.frequent == 0:
            self.now(num_update)

    def now(self, num_update: int) -> None:
        """Calls it at this update, unless that has been done."""
        if self._done != num_update:
            self.action(num_update)
            self._done = num_update


class CallBackModelSave:
    """Saves the backbone as ``model-symbol.json``, ``model-0000.params`` and ``backbone.onnx``, written by rank 0.

    Args:
        symbol: the backbone in float32, whatever the module trains it in: the parameters are saved so.
        module: SampleDistributeModule.
        prefix: folder and start of the file names, such as ``<folder>/model``.
        rank: this rank; all take part, because the running statistics are averaged over them first.
        frequent: updates between saves.
        export: makes the ONNX file, which lies in the same folder; None: none is written.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        module,
        prefix: str,
        rank: int,
        frequent: int = 10000,
        export: OnnxExport | None = None,
    ):
        self.symbol = symbol
        self.module = module
        self.prefix = prefix
        self.rank = rank
        self.export = export
        self._every = Every(frequent, self._save)

    def __call__(self, param) -> None:
        self._every(param.num_update)

    def save(self, num_update: int) -> None:
        """Saves now, unless that was done at this update already.

        Raises:
            JobError: on every rank, where rank 0 could not write, or the ONNX file gives other embeddings.
        """
        self._every.now(num_update)

    def _save(self, num_update: int) -> None:
        self.module.average_aux()
        arg_params, aux_params = self.module.get_export_params()
        collectives.run_on_all_ranks(
            "save_model", lambda: self.rank == 0 and self._write(num_update, arg_params, aux_params)
        )

    def _write(self, num_update: int, arg_params, aux_params) -> None:
        params = {f"arg:{name}": array.asnumpy() for name, array in arg_params.items()}
        params.update({f"aux:{name}": array.asnumpy() for name, array in aux_params.items()})
        replace_file(f"{self.prefix}-symbol.json", [self.symbol.tojson().encode()])
        replace_file(f"{self.prefix}-0000.params", array_file_chunks(params))
        if self.export is not None:
            # After them: should it fail, they are there, and the older ONNX file stays.
            content = self.export(arg_params, aux_params, num_update)
            replace_file(os.path.join(os.path.dirname(self.prefix), ONNX_NAME), [content])


class CallBackCenterSave:
    """Saves the class centers of every rank at the same updates as the backbone.

    Args:
        memory_bank: MemoryBank of this rank.
        frequent: updates between saves.
    """

    def __init__(self, memory_bank, frequent: int = 10000):
        self._every = Every(frequent, lambda num_update: collectives.run_on_all_ranks("save_centers", memory_bank.save))

    def __call__(self, param) -> None:
        self._every(param.num_update)

    def save(self, num_update: int) -> None:
        """Saves now, unless that was done at this update already.

        Raises:
            JobError: on every rank, where one could not write.
        """
        self._every.now(num_update)
