"""Sizes of a backbone for the planner, derived from the module itself on tensors without numbers.

What autograd saves follows from the shapes of its saved tensors in forward passes over 2 and 3 images: what grows with
the batch is saved of each image, the rest are copies of weights and statistics of a batch.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from partial_fc.planner.backbones import IMAGE_SIZE, TorchBackbone

from .backbones import get_model

HALF = torch.bfloat16  # which autocast has on a CPU; the sizes are those of float16
FLOPS = 2  # that PyTorch counts for a multiplication with its addition


def sizes(network: str, embedding: int) -> TorchBackbone:
    """Returns the sizes of a network for images of 112 x 112.

    Args:
        network: a name that `get_model` takes.
        embedding: E.

    Raises:
        ValueError: There is no such network.
    """
    with FakeTensorMode():  # as on a CPU
        return sizes_of(get_model(network, num_features=embedding))


def sizes_of(model: nn.Module) -> TorchBackbone:
    """Returns the sizes of a module whose tensors have no numbers."""
    full, mixed = (_of_an_image(model, autocast) for autocast in (False, True))
    parameters = [parameter.numel() for parameter in model.parameters()]
    return TorchBackbone(
        parameters=sum(parameters),
        statistics=sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()),
        copied=mixed.fixed,
        largest_parameter=max(parameters),
        largest=full.largest,
        all_full=full.saved[torch.float32],
        half=mixed.saved[HALF],
        full=mixed.saved[torch.float32],
        multiplications=full.multiplications,
    )


class _Pass(NamedTuple):
    """Counts of a forward pass over B images.

    Attributes:
        saved: numbers that autograd saves, by type.
        fixed: numbers of HALF whose tensors have a gradient: of copies of weights, besides those of maps.
        largest: of the largest saved tensor.
        multiplications: of products.
    """

    saved: Counter[torch.dtype]
    fixed: int
    largest: int
    multiplications: int


def _of_an_image(model: nn.Module, autocast: bool) -> _Pass:
    """What an image adds; but the copies of the weights, which all images share."""
    two, three = (_forward(model, batch, autocast) for batch in (2, 3))
    saved = Counter({dtype: three.saved[dtype] - two.saved[dtype] for dtype in three.saved})
    largest = three.largest // 3
    return _Pass(saved, 3 * two.fixed - 2 * three.fixed, largest, three.multiplications - two.multiplications)


def _forward(model: nn.Module, batch: int, autocast: bool) -> _Pass:
    own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in own:
            saved[place] = tensor  # also keeps it, so that no other takes its place
        return tensor

    images = torch.zeros(batch, 3, IMAGE_SIZE, IMAGE_SIZE).contiguous(memory_format=torch.channels_last)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", HALF, enabled=autocast),
        FlopCounterMode(display=False) as counter,
    ):
        model(images)
    numbers: Counter[torch.dtype] = Counter()
    fixed = largest = 0
    for tensor in saved.values():
        count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        numbers[tensor.dtype] += count
        fixed += count * (tensor.dtype == HALF and tensor.requires_grad)
        largest = max(largest, count)
    return _Pass(numbers, fixed, largest, counter.get_total_flops() // FLOPS)
