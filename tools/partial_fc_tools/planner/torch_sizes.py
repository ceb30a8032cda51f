"""Measures a backbone of the PyTorch trainer: one forward pass, with hooks on what autograd saves.

The pass needs no numbers, so that images are fake tensors, which have a shape only. A task's network may depend on the
numbers in its items: it computes some of them.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from partial_fc.data.batch import arrays_of, map_inputs
from partial_fc.training.tasks import build_task
from partial_fc.utils.config import read_settings
from partial_fc_torch.backbones import get_model
from partial_fc_torch.backbones.recompute import Recomputed, recompute_blocks
from partial_fc_torch.pixels import normalized

from .backbones import IMAGE_NUMBERS, IMAGE_SIZE, BackboneSizes

# Items of the pass. A tensor that autograd saves belongs to the items if this prime number divides its size; the others
# are copies of weights, and statistics of a batch.
ITEMS = 13
HALF = torch.bfloat16  # autocast's type on a CPU; float16 has the same size
FLOPS = 2  # that PyTorch counts for a multiplication with its addition
# Attention on a CPU: PyTorch's counter knows only the operators of GPUs.
COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *args, **kwargs: (
        sdpa_flop_count(query, key, value)
    )
}
Saved = dict[int, torch.Tensor]  # by the address of their storage, which the tensor keeps from being used again


@cache
def measure(
    network: str, embedding: int, fp16: bool, recompute: bool, task: tuple[str, str, str, int] | None
) -> BackboneSizes:
    """Returns the sizes of a network, for images of 112 x 112 or for the items of a task.

    The arguments are fields of Case; ``task`` is its task, task_options, config and classes.

    Raises:
        ValueError: There is no such network, it has no blocks, or the task cannot be made or read.
    """
    if task is not None:
        return _measure(*_task_model(network, embedding, *task), fp16, recompute)
    with torch.device("meta"):
        model = get_model(network, num_features=embedding)
    with FakeTensorMode(allow_non_fake_inputs=True):  # as on a CPU, but without numbers
        images = torch.zeros(ITEMS, 3, IMAGE_SIZE, IMAGE_SIZE).contiguous(memory_format=torch.channels_last)
        return _measure(model.to_empty(device="cpu"), images, IMAGE_NUMBERS, fp16, recompute)


def _task_model(
    network: str, embedding: int, name: str, options: str, config: str, classes: int
) -> tuple[nn.Module, Any, int]:
    """Returns the network, inputs of ITEMS items as the engine passes them to it, and the bytes of an item."""
    settings = {"seed": 0, **(read_settings(config) if config else {})}
    settings |= {"task": name, "num_classes": classes, "network": network, "embedding_size": embedding}
    settings["task_options"] = options or settings.get("task_options", "")
    try:
        task = build_task(SimpleNamespace(**settings))
        items = task.dummy_inputs(ITEMS, np.random.default_rng(0))
        model = get_model(network, num_features=embedding, **{"image_size": None, **task.network_sizes()})
    except (AttributeError, OSError, ValueError) as error:
        hint = ": name a settings.json with --config" if isinstance(error.__cause__ or error, AttributeError) else ""
        raise ValueError(f"task {name} cannot be planned: {error}{hint}") from error

    def tensor(array: np.ndarray) -> torch.Tensor:
        read = torch.from_numpy(np.ascontiguousarray(array))
        return normalized(read) if task.pixels else read

    item_bytes = sum(array.nbytes for array in arrays_of(items).values()) // ITEMS
    return model, map_inputs(tensor, items), item_bytes


def _measure(model: nn.Module, inputs: Any, item_bytes: int, fp16: bool, recompute: bool) -> BackboneSizes:
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter, torch.no_grad():
        model.eval()(inputs)
    if recompute:
        recompute_blocks(model)
    # The pass runs blocks that recompute their activations as if they kept them, which shows both. Some networks
    # recompute by themselves.
    blocks = [module for module in model.modules() if isinstance(module.__dict__.get("forward"), Recomputed)]
    for block in blocks:
        del block.forward
    (kept, *inside), starts, products = _forward(model.train(), inputs, fp16, blocks)
    # In the backward pass, while a block is computed again, it and all blocks before it have their inputs.
    peaks, before = [] if blocks else [kept], dict(kept)
    for start, saved in zip(starts, inside):
        before |= start
        peaks.append({**before, **saved})
    saved_bytes, copied_bytes = max(map(_bytes_of_items_and_copies, peaks))
    numbers = [_numel(tensor) for part in (kept, *inside) for tensor in part.values()]
    parameters = [parameter.numel() for parameter in model.parameters()]
    return BackboneSizes(
        parameters=sum(parameters),
        statistics=sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()),
        multiplications=counter.get_total_flops() // FLOPS // ITEMS,
        saved_bytes=saved_bytes // ITEMS,
        item_bytes=item_bytes,
        trained=sum(products) // ITEMS,
        recomputed=sum(products[1:]) // ITEMS,
        copied_bytes=copied_bytes,
        largest_parameter=max(parameters),
        largest=max(number for number in numbers if number % ITEMS == 0) // ITEMS,
    )


def _forward(
    model: nn.Module, inputs: Any, fp16: bool, blocks: list[nn.Module]
) -> tuple[list[Saved], list[Saved], list[int]]:
    """Returns what autograd saves, outside of the blocks and in each; inputs of each block; and multiplications."""
    weights = {_storage(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    saved: list[Saved] = [{} for _ in range(1 + len(blocks))]
    starts: list[Saved] = [{} for _ in blocks]
    products = [0] * len(saved)
    current = 0

    def save(tensor: torch.Tensor) -> torch.Tensor:
        if _storage(tensor) not in weights:
            saved[current][_storage(tensor)] = tensor
        return tensor

    def enter(number: int, arguments: tuple[Any, ...] = ()) -> None:
        nonlocal current
        products[current] += counter.get_total_flops() // FLOPS - sum(products)
        current = number
        if number:
            starts[number - 1] = {_storage(each): each for each in arguments if isinstance(each, torch.Tensor)}

    for number, block in enumerate(blocks, start=1):
        block.register_forward_pre_hook(lambda _, arguments, number=number: enter(number, arguments))
        block.register_forward_hook(lambda *_: enter(0))
    with (
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        torch.autocast("cpu", HALF, enabled=fp16),
        FlopCounterMode(display=False, custom_mapping=COUNTED) as counter,
    ):
        model(inputs)
        enter(0)
    return saved, starts, products


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _numel(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.dtype.itemsize


def _bytes_of_items_and_copies(saved: Saved) -> tuple[int, int]:
    """Returns the bytes saved of all items, and those of copies of weights in 16 bits."""
    items = copies = 0
    for tensor in saved.values():
        if _numel(tensor) % ITEMS == 0:
            items += tensor.untyped_storage().nbytes()
        elif tensor.dtype == HALF and tensor.requires_grad:
            copies += tensor.untyped_storage().nbytes()
    return items, copies
