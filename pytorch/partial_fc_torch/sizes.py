"""Sizes of a backbone for the planner, derived from the module itself on tensors without numbers.

What autograd saves follows from the shapes of its saved tensors in forward passes over 2 and 3 images: what grows with
the batch is saved of each image, the rest are copies of weights and statistics of a batch.
"""

from collections import Counter
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from partial_fc.planner.backbones import IMAGE_SIZE, TorchBackbone

from .backbones import get_model
from .backbones.recompute import Recomputed

HALF = torch.bfloat16  # which autocast has on a CPU; the sizes are those of float16
FLOPS = 2  # that PyTorch counts for a multiplication with its addition
# The operator of attention on a CPU, of which PyTorch's counter knows the others.
COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *args, **kwargs: (
        sdpa_flop_count(query, key, value)
    )
}


def sizes(network: str, embedding: int) -> TorchBackbone:
    """Returns the sizes of a network for images of 112 x 112.

    Args:
        network: a name that `get_model` takes.
        embedding: E.

    Raises:
        ValueError: There is no such network.
    """
    with torch.device("meta"):
        model = get_model(network, num_features=embedding)
    with FakeTensorMode(allow_non_fake_inputs=True):  # as on a CPU, but without numbers
        return _sizes(model.to_empty(device="cpu"))


def _sizes(model: nn.Module) -> TorchBackbone:
    full, mixed = (_of_an_image(model, autocast) for autocast in (False, True))
    parameters = [parameter.numel() for parameter in model.parameters()]
    return TorchBackbone(
        parameters=sum(parameters),
        statistics=sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()),
        copied=mixed.copied,
        largest_parameter=max(parameters),
        largest=full.largest,
        all_full=full.saved[torch.float32],
        half=mixed.saved[HALF],
        full=mixed.saved[torch.float32],
        trained=full.multiplications,
        multiplications=_forward(model.eval(), 2, False).multiplications // 2,
    )


class _Pass(NamedTuple):
    """Counts of a forward pass over B images, or of what an image adds to it.

    Attributes:
        saved: numbers that autograd saves, by type.
        copied: numbers of HALF that have a gradient: of copies of weights, and those of maps.
        largest: of the largest saved tensor.
        multiplications: of products.
    """

    saved: Counter[torch.dtype]
    copied: int
    largest: int
    multiplications: int


def _of_an_image(model: nn.Module, autocast: bool) -> _Pass:
    """What an image adds; copies of the weights are counted once."""
    kept = _difference(model, autocast)
    again = [module for module in model.modules() if isinstance(module.__dict__.get("forward"), Recomputed)]
    if not again:
        return kept
    for module in again:
        del module.forward
    everything = _difference(model, autocast)
    for module in again:
        module.forward = Recomputed(module)
    # The backward pass computes one of the blocks, which are alike, after the other again.
    more = {dtype: (everything.saved[dtype] - kept.saved[dtype]) // len(again) for dtype in everything.saved}
    copied = kept.copied + (everything.copied - kept.copied) // len(again)
    return kept._replace(saved=kept.saved + Counter(more), copied=copied)


def _difference(model: nn.Module, autocast: bool) -> _Pass:
    two, three = (_forward(model, batch, autocast) for batch in (2, 3))
    saved = Counter({dtype: three.saved[dtype] - two.saved[dtype] for dtype in three.saved})
    copied = 3 * two.copied - 2 * three.copied
    return _Pass(saved, copied, three.largest // 3, three.multiplications - two.multiplications)


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
        FlopCounterMode(display=False, custom_mapping=COUNTED) as counter,
    ):
        model(images)
    numbers: Counter[torch.dtype] = Counter()
    copied = largest = 0
    for tensor in saved.values():
        count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        numbers[tensor.dtype] += count
        copied += count * (tensor.dtype == HALF and tensor.requires_grad)
        largest = max(largest, count)
    return _Pass(numbers, copied, largest, counter.get_total_flops() // FLOPS)
