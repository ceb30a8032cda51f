"""Batches of tensors: a rank's part of a training set, and dummy batches that cost nothing to read.

Shapes: B local batch, R ranks, C classes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from partial_fc.data.batch import Batch, Inputs, map_inputs
from partial_fc.data.cursor import Position
from partial_fc.data.training_data import DUMMY_BATCHES, Batches, DataLoader, DummyData

Tensors = Any  # a tensor or a dict of tensors; the first axis counts items


def as_tensors(inputs: Inputs, pinned: bool = False) -> Tensors:
    """Returns inputs as tensors on the host; pinned memory lets a GPU copy them asynchronously."""

    def as_tensor(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory() if pinned else tensor

    return map_inputs(as_tensor, inputs)


def micro_batches(inputs: Tensors, count: int) -> list[Tensors]:
    """Splits the items into ``count`` parts, or fewer if there are fewer items."""
    if isinstance(inputs, Mapping):
        parts = zip(*(tensor.chunk(count) for tensor in inputs.values()))
        return [dict(zip(inputs, part)) for part in parts]
    return list(inputs.chunk(count))


def tensor_data(batches: Batches, threads: int, pinned: bool) -> DataLoader[Batch]:
    """Returns a loader that reads a rank's batches with this many threads, see DataLoader and as_tensors."""

    def load(position: Position) -> Batch:
        inputs, labels = batches.batch(*position)
        return Batch(as_tensors(inputs, pinned), labels)

    return DataLoader(batches, threads, load)


def dummy_tensors(
    inputs: Inputs,
    num_classes: int,
    seed: int,
    rank: int,
    pinned: bool,
    batches: int = DUMMY_BATCHES,
    label_shape: tuple[int, ...] = (),
) -> DummyData[Batch]:
    """Returns dummy batches, see DummyData and as_tensors."""
    tensors = as_tensors(inputs, pinned)
    return DummyData(inputs, lambda labels: Batch(tensors, labels), batches, num_classes, seed, rank, label_shape)
