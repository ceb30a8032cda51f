"""Measures a backbone of the PyTorch trainer in a forward pass, with hooks on the tensors that autograd saves.

For images the pass uses fake tensors, which have shapes but no values. For a task it uses real ones, because the
task's network may depend on the values in its inputs.
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

# Batch size of the pass, a prime number: if it divides the size of a saved tensor, the tensor is an activation. Other
# saved tensors are copies of weights, and batch statistics.
ITEMS = 13
HALF = torch.bfloat16  # autocast's type on a CPU; float16 has the same size
FLOPS = 2  # PyTorch counts a multiply-add as two
# PyTorch's counter lacks the attention operator of CPUs.
COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *args, **kwargs: (
        sdpa_flop_count(query, key, value)
    )
}
Saved = dict[int, torch.Tensor]  # by the address of the storage, which cannot be reused while the tensor exists


@cache
def measure(
    network: str, embedding: int, fp16: bool, recompute: bool, task: tuple[str, str, str, int] | None
) -> BackboneSizes:
    """Returns the sizes of a network, for images of 112 x 112 or for the items of a task.

    The arguments are fields of Case; ``task`` consists of task, task_options, config and classes.

    Raises:
        ValueError: The network is unknown, it has no blocks to recompute, or the task fails.
    """
    if task is not None:
        return _measure(*_task_model(network, embedding, *task), fp16, recompute)
    with torch.device("meta"):
        model = get_model(network, num_features=embedding)
    with FakeTensorMode(allow_non_fake_inputs=True):  # computes shapes as on a CPU
        images = torch.zeros(ITEMS, 3, IMAGE_SIZE, IMAGE_SIZE).contiguous(memory_format=torch.channels_last)
        return _measure(model.to_empty(device="cpu"), images, IMAGE_NUMBERS, fp16, recompute)


def _task_model(
    network: str, embedding: int, name: str, options: str, config: str, classes: int
) -> tuple[nn.Module, Any, int]:
    """Returns the network, a batch of ITEMS items as the engine would pass it, and the bytes of an item."""
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
    # Blocks that recompute their activations run without recomputation here, to measure what they would save inside.
    # Some networks have such blocks even without ``recompute``.
    blocks = [module for module in model.modules() if isinstance(module.__dict__.get("forward"), Recomputed)]
    for block in blocks:
        del block.forward
    (kept, *inside), starts, products = _forward(model.train(), inputs, fp16, blocks)
    # While the backward pass recomputes a block, the inputs of this block and of all blocks before it still exist.
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
        training_products=sum(products) // ITEMS,
        recomputed=sum(products[1:]) // ITEMS,
        copied_bytes=copied_bytes,
        largest_parameter=max(parameters),
        largest=max(number for number in numbers if number % ITEMS == 0) // ITEMS,
    )


def _forward(
    model: nn.Module, inputs: Any, fp16: bool, blocks: list[nn.Module]
) -> tuple[list[Saved], list[Saved], list[int]]:
    """Runs a forward pass.

    Returns:
        Tensors that autograd saves, first outside of the blocks, then in each block; the inputs of each block; and the
        multiplications, outside and in each block.
    """
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
            starts[number - 1] = {_storage(value): value for value in arguments if isinstance(value, torch.Tensor)}

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
    """Returns the bytes of saved activations of all items, and of 16-bit copies of the weights."""
    items = copies = 0
    for tensor in saved.values():
        if _numel(tensor) % ITEMS == 0:
            items += tensor.untyped_storage().nbytes()
        elif tensor.dtype == HALF and tensor.requires_grad:
            copies += tensor.untyped_storage().nbytes()
    return items, copies
