"""Saving the backbone during training; called on every rank."""

from __future__ import annotations

import io
import os

import torch
from torch import nn

from partial_fc.training.saving import ONNX_NAME
from partial_fc.utils.atomic_io import replace_file

from .engine import TorchEngine
from .onnx_export import OnnxExport
from .published_files import STATE_DICTS
from .weights import published_state


def save_model(engine: TorchEngine, folder: str, export: OnnxExport, num_update: int) -> None:
    """Saves the backbone as ``backbone.pth``, a state_dict on the CPU, and ``backbone.onnx``, written by rank 0.

    Collectives: all-reduce ``statistics``, all-gather ``status.save_model``.
    """
    engine.average_statistics()
    engine.collectives.on_rank_zero("save_model", _write, engine.backbone, folder, export, num_update)


def _write(backbone: nn.Module, folder: str, export: OnnxExport, num_update: int) -> None:
    content = io.BytesIO()
    torch.save(published_state(backbone), content)
    replace_file(os.path.join(folder, STATE_DICTS[0]), [content.getbuffer()])
    # Last: if the export fails, the state_dict is written and the previous ONNX file stays.
    replace_file(os.path.join(folder, ONNX_NAME), [export(num_update)])
