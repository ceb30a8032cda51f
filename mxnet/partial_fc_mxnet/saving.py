"""Saving the backbone and the class centers during training; called on every rank, like all callbacks."""

import os
from functools import partial

import mxnet as mx

from partial_fc.checkpoint.class_centers import ORIGINAL_FILES
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.training.saving import ONNX_NAME, CenterSave, SaveCallback, remove_average
from partial_fc.utils.atomic_io import replace_file

from .collectives import default_collectives
from .onnx_export import OnnxExport


class CallBackModelSave(SaveCallback):
    """Saves the backbone as ``model-symbol.json``, ``model-0000.params`` and ``backbone.onnx``, written by rank 0.

    Collectives of a save: ``aux.*`` of SampleDistributeModule.average_statistics, all-gather ``status.save_model``.

    Args:
        symbol: the backbone in float32, whatever dtype the module trains it in: the parameters are saved as float32.
        module: SampleDistributeModule.
        prefix: folder and start of the file names, such as ``<folder>/model``.
        rank: rank of this process.
        frequent: number of updates between saves.
        export: makes the ONNX file in the same folder; None writes no ONNX file.
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
        super().__init__(frequent, self._save)
        self.symbol = symbol
        self.module = module
        self.prefix = prefix
        self.rank = rank
        self.export = export

    def validate_export(self) -> None:
        """Raises JobError, on every rank, if the backbone cannot be exported (all-gather ``status.export``)."""
        if self.export is not None:
            export = self.export
            default_collectives.on_rank_zero("export", lambda: export.validate_export(*self.module.get_export_params()))

    def _save(self, num_update: int) -> None:
        self.module.average_statistics()
        default_collectives.on_rank_zero("save_model", self._write, num_update)

    def _write(self, num_update: int) -> None:
        arg_params, aux_params = self.module.get_export_params()
        params = {f"arg:{name}": array.asnumpy() for name, array in arg_params.items()}
        params.update({f"aux:{name}": array.asnumpy() for name, array in aux_params.items()})
        replace_file(f"{self.prefix}-symbol.json", [self.symbol.tojson().encode()])
        replace_file(f"{self.prefix}-0000.params", array_file_chunks(params))
        if self.export is not None:
            # Last: if the export fails, MXNet's files are written and the previous ONNX file remains.
            content = self.export(arg_params, aux_params, num_update)
            replace_file(os.path.join(os.path.dirname(self.prefix), ONNX_NAME), [content])
        remove_average(os.path.dirname(self.prefix))  # a file of an earlier training by the PyTorch trainer


class CallBackCenterSave(CenterSave):
    """Saves the class centers of every rank, see CenterSave and MemoryBank.save."""

    def __init__(self, memory_bank, frequent: int = 10000, with_momentum: bool = True):
        write = partial(memory_bank.save, with_momentum)
        super().__init__(default_collectives, frequent, write, memory_bank.prefix, ORIGINAL_FILES)
