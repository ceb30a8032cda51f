"""Saving the backbone and the class centers during training; called on every rank, like all callbacks."""

from __future__ import annotations

import io
import os

import torch

from partial_fc.training.saving import ONNX_NAME, SaveCallback
from partial_fc.utils.atomic_io import replace_file

from .engine import TorchEngine
from .onnx_export import OnnxExport
from .published_files import STATE_DICTS
from .weights import published_state

BACKBONE = STATE_DICTS[0]


class TorchModelSave(SaveCallback):
    """Saves the backbone as ``backbone.pth``, a state_dict on the CPU, and ``backbone.onnx``, written by rank 0.

    Collectives of a save: all-reduce ``statistics``, all-gather ``status.save_model``.

    Args:
        engine: in training.
        folder: of the files.
        frequent: updates between saves.
        export: makes the ONNX file.
    """

    def __init__(self, engine: TorchEngine, folder: str, frequent: int, export: OnnxExport):
        super().__init__(frequent, self._save)
        self.engine, self.folder, self.export = engine, folder, export

    def validate_export(self) -> None:
        """Raises JobError on every rank if the untrained backbone cannot be exported (all-gather ``status.export``)."""
        self.engine.collectives.on_rank_zero("export", self.export.validate_export)

    def _save(self, num_update: int) -> None:
        self.engine.average_statistics()
        self.engine.collectives.on_rank_zero("save_model", self._write, num_update)

    def _write(self, num_update: int) -> None:
        content = io.BytesIO()
        torch.save(published_state(self.engine.backbone), content)
        replace_file(os.path.join(self.folder, BACKBONE), [content.getbuffer()])
        # Last: if the export fails, the state_dict is written and the previous ONNX file stays.
        replace_file(os.path.join(self.folder, ONNX_NAME), [self.export(num_update)])
