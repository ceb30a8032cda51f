"""Saving a backbone at regular updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.utils.atomic_io import replace_file

from .callbacks import BatchEndParam

ONNX_NAME = "backbone.onnx"


class SaveCallback:
    """A callback that calls ``action(num_update)`` every ``frequent`` updates, at most once for each update."""

    def __init__(self, frequent: int, action: Callable[[int], object]):
        self.frequent = frequent
        self._action = action
        self._done: int | None = None

    def __call__(self, param: BatchEndParam) -> None:
        """Saves every ``frequent`` updates; called on every rank."""
        if param.num_update % self.frequent == 0:
            self.save(param.num_update)

    def save(self, num_update: int) -> None:
        """Saves now, unless that was done at this update already.

        Raises:
            JobError: On every rank, if one cannot write.
        """
        if self._done != num_update:
            self._action(num_update)
            self._done = num_update


def write_mxnet_model(prefix: str, symbol: str, params: Mapping[str, np.ndarray]) -> None:
    """Writes ``<prefix>-symbol.json`` and ``<prefix>-0000.params``, which MXNet loads.

    Args:
        prefix: folder and start of the file names.
        symbol: the network as JSON.
        params: ``arg:<name>`` and ``aux:<name>`` -> float32 array.

    Raises:
        OSError: A file cannot be written.
    """
    replace_file(f"{prefix}-symbol.json", [symbol.encode()])
    replace_file(f"{prefix}-0000.params", array_file_chunks(params))


def onnx_metadata(
    settings: Mapping[str, Any], history: Mapping[str, Sequence[VerificationPoint]], num_update: int
) -> dict[str, str]:
    """Returns the metadata of the ONNX file: the origin of the weights and, if just verified, a threshold.

    Args:
        settings: of default.py.
        history: name of a validation set -> points of its verifications; the threshold is that of the first set.
        num_update: update after which the weights are saved.
    """
    names = ("network", "dataset", "loss", "num_classes", "sample_ratio", "rand_mirror")
    metadata = {name: str(settings[name]) for name in names}
    metadata["num_update"] = str(num_update)
    for name, points in history.items():
        if points and points[-1].num_update == num_update > 0:
            return {**metadata, "verification_set": name, "verification_threshold": repr(points[-1].threshold)}
    return metadata
