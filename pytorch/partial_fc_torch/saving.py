"""Saving the backbone during a training."""

import io
import os
from collections.abc import Callable, Mapping

import torch

from partial_fc.export.torch_files import CONFIG
from partial_fc.training.saving import AVERAGE, remove_average, safetensors_name
from partial_fc.utils.atomic_io import replace_file

from .engine import TorchEngine
from .onnx_export import OnnxExport
from .pretrained import weights_content
from .weights import published_state


def save_model(
    engine: TorchEngine,
    folder: str,
    exports: Mapping[str, OnnxExport],
    config: Callable[[Mapping[str, str]], bytes],
    num_update: int,
) -> None:
    """Saves backbones as state_dicts, with safetensors and as ONNX; all ranks call it, rank 0 writes.

    Collectives: all-reduce ``statistics``, all-gather ``status.save_model``.

    Args:
        engine: averages its running statistics over the ranks first.
        folder: where the files are written.
        exports: file name without its extension -> the backbone to save.
        config: metadata of the backbone -> content of its ``config.json``.
        num_update: number of updates done.
    """
    engine.average_statistics()
    engine.collectives.on_rank_zero("save_model", _write, folder, exports, config, num_update)


def _write(
    folder: str, exports: Mapping[str, OnnxExport], config: Callable[[Mapping[str, str]], bytes], num_update: int
) -> None:
    for name, export in exports.items():
        content = io.BytesIO()
        with export.weights():
            state = published_state(export.model)
        torch.save(state, content)
        replace_file(os.path.join(folder, f"{name}.pth"), [content.getbuffer()])
        replace_file(os.path.join(folder, safetensors_name(name)), [weights_content(state)])
        if name != AVERAGE:
            replace_file(os.path.join(folder, CONFIG), [config(export.metadata(num_update))])
        # Last: if the export fails, the state_dict is written and the previous ONNX file stays.
        if export.fits:
            replace_file(os.path.join(folder, f"{name}.onnx"), [export(num_update)])
    if AVERAGE not in exports:
        remove_average(folder)
