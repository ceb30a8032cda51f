"""Sizes of a backbone for the planner, derived from the module itself on tensors without numbers.

What autograd saves follows from the shapes of its saved tensors in forward passes over 2 and 3 images: what grows with
the batch is saved of each image, the rest are copies of weights and statistics of a batch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

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

from .backbones import IMAGE_NUMBERS, IMAGE_SIZE, PlannedTask, TorchBackbone

HALF = torch.bfloat16  # which autocast has on a CPU; the sizes are those of float16
OUTSIDE = -1  # of all blocks that are computed again
LARGEST_BATCH = 3
FLOPS = 2  # that PyTorch counts for a multiplication with its addition
# The operator of attention on a CPU, of which PyTorch's counter knows the others.
COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *args, **kwargs: (
        sdpa_flop_count(query, key, value)
    )
}


def sizes(network: str, embedding: int, recompute: bool, task: PlannedTask | None = None) -> TorchBackbone:
    """Returns the sizes of a network for images of 112 x 112, or for the items of a task.

    Args:
        network: a name that `get_model` takes.
        embedding: E.
        recompute: the blocks compute their activations again, see recompute_blocks.
        task: what a step does may depend on numbers in its items, so that the network is built with them.

    Raises:
        ValueError: There is no such network, it has no blocks, or the task cannot be made or read.
    """
    if task is not None:
        model, inputs, input_bytes = _of_task(task, network, embedding)
        if recompute:
            recompute_blocks(model)
        return _sizes(model, inputs, input_bytes)
    with torch.device("meta"):
        model = get_model(network, num_features=embedding)
    if recompute:
        recompute_blocks(model)
    with FakeTensorMode(allow_non_fake_inputs=True):  # as on a CPU, but without numbers
        return _sizes(model.to_empty(device="cpu"), _images, IMAGE_NUMBERS)


def _images(count: int) -> torch.Tensor:
    return torch.zeros(count, 3, IMAGE_SIZE, IMAGE_SIZE).contiguous(memory_format=torch.channels_last)


def _of_task(planned: PlannedTask, network: str, embedding: int) -> tuple[nn.Module, Callable[[int], Any], int]:
    """Returns the network, count -> inputs of so many items as the engine gives them to it, and bytes of an item."""
    given = read_settings(planned.config) if planned.config else {}
    own = {"task": planned.name, "num_classes": planned.classes, "network": network, "embedding_size": embedding}
    options = planned.options or given.get("task_options", "")
    settings = SimpleNamespace(**{"seed": 0, **given, **own, "task_options": options})
    try:
        task = build_task(settings)
        items = task.dummy_inputs(LARGEST_BATCH, np.random.default_rng(0))
        model = get_model(network, num_features=embedding, **{"image_size": None, **task.network_sizes()})
    except (AttributeError, ValueError) as error:
        missing = error if isinstance(error, AttributeError) else error.__cause__
        if not isinstance(missing, AttributeError):
            raise
        where = planned.config or "no settings.json: name one with --config"
        raise ValueError(
            f"task {planned.name} reads a setting that is missing ({missing}); there is {where}"
        ) from error
    except OSError as error:
        raise ValueError(f"the items of task {planned.name} cannot be read: {error}") from error

    def tensor(array: np.ndarray) -> torch.Tensor:
        read = torch.from_numpy(np.ascontiguousarray(array))
        return normalized(read) if task.pixels else read

    nbytes = sum(array.nbytes for array in arrays_of(items).values())
    return model, lambda count: map_inputs(lambda array: tensor(array[:count]), items), nbytes // LARGEST_BATCH


def _sizes(model: nn.Module, inputs: Callable[[int], Any], input_bytes: int) -> TorchBackbone:
    full, mixed = (_of_an_image(model, inputs, autocast) for autocast in (False, True))
    parameters = [parameter.numel() for parameter in model.parameters()]
    return TorchBackbone(
        parameters=sum(parameters),
        statistics=sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()),
        copied=mixed.copied[OUTSIDE],
        largest_parameter=max(parameters),
        largest=full.largest,
        all_full=_float32s(full.saved),
        half=mixed.saved[OUTSIDE, HALF],
        full=_float32s(mixed.saved),
        trained=full.products.total(),
        recomputed=full.products.total() - full.products[OUTSIDE],
        multiplications=_forward(model.eval(), inputs(2), False).products.total() // 2,
        input_bytes=input_bytes,
    )


def _float32s(saved: Mapping[tuple[int, torch.dtype], int]) -> int:
    """Returns as how many numbers of float32 all counts of other types than HALF, such as those of indices."""
    numbers = {dtype: number for (block, dtype), number in saved.items() if block == OUTSIDE and dtype != HALF}
    return sum(dtype.itemsize * number for dtype, number in numbers.items()) // torch.float32.itemsize


class _Pass(NamedTuple):
    """Counts of a forward pass over B images, or of what an image adds to it, by block that is computed again."""

    saved: Counter[tuple[int, torch.dtype]]  # numbers that autograd saves, by block and type
    copied: Counter[int]  # numbers of HALF that have a gradient: of copies of weights, and those of maps
    products: Counter[int]  # multiplications
    largest: int  # of the largest saved tensor


def _of_an_image(model: nn.Module, inputs: Callable[[int], Any], autocast: bool) -> _Pass:
    """What an image adds, with all that is saved at a time as that of no block; copies of the weights count once."""
    kept = _difference(model, inputs, autocast)
    blocks = _recomputed(model)
    if not blocks:
        return kept
    for module in blocks:
        del module.forward
    whole = _difference(model, inputs, autocast, blocks)
    for module in blocks:
        module.forward = Recomputed(module)

    def saved_at(block: int) -> Counter[tuple[int, torch.dtype]]:
        """While the backward pass has this block computed again, those before it have their inputs."""
        found: Counter[tuple[int, torch.dtype]] = Counter()
        for counts, chosen in ((kept.saved, range(OUTSIDE, block)), (whole.saved, (block,))):
            for (of_block, dtype), number in counts.items():
                found[OUTSIDE, dtype] += number * (of_block in chosen)
        return found

    def nbytes(saved: Counter[tuple[int, torch.dtype]]) -> int:
        return sum(number * dtype.itemsize for (_, dtype), number in saved.items())

    saved = max(map(saved_at, range(len(blocks))), key=nbytes)
    copied = kept.copied[OUTSIDE] + max(whole.copied[block] for block in range(len(blocks)))
    return kept._replace(saved=saved, copied=Counter({OUTSIDE: copied}))


def _recomputed(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module.__dict__.get("forward"), Recomputed)]


def _difference(
    model: nn.Module, inputs: Callable[[int], Any], autocast: bool, blocks: Sequence[nn.Module] | None = None
) -> _Pass:
    two, three = (_forward(model, inputs(batch), autocast, blocks) for batch in (2, LARGEST_BATCH))
    saved = Counter({key: three.saved[key] - two.saved[key] for key in three.saved})
    copied = Counter({block: 3 * two.copied[block] - 2 * three.copied[block] for block in three.copied})
    products = Counter({block: three.products[block] - two.products[block] for block in three.products})
    return _Pass(saved, copied, products, three.largest // 3)


def _forward(model: nn.Module, inputs: Any, autocast: bool, blocks: Sequence[nn.Module] | None = None) -> _Pass:
    """Counts of a forward pass, by block of ``blocks``; None takes those that are computed again."""
    own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, tuple[int, torch.Tensor]] = {}
    products: Counter[int] = Counter()
    where = OUTSIDE

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in own:
            saved[place] = where, tensor  # also keeps it, so that no other takes its place
        return tensor

    def enter(block: int) -> None:
        nonlocal where
        products[where] += counter.get_total_flops() // FLOPS - products.total()
        where = block

    hooks = []
    for number, module in enumerate(_recomputed(model) if blocks is None else blocks):
        hooks.append(module.register_forward_pre_hook(lambda *_, block=number: enter(block)))
        hooks.append(module.register_forward_hook(lambda *_: enter(OUTSIDE)))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", HALF, enabled=autocast),
        FlopCounterMode(display=False, custom_mapping=COUNTED) as counter,
    ):
        model(inputs)
        enter(OUTSIDE)
    for hook in hooks:
        hook.remove()
    numbers: Counter[tuple[int, torch.dtype]] = Counter()
    copied: Counter[int] = Counter()
    largest = 0
    for block, tensor in saved.values():
        count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        numbers[block, tensor.dtype] += count
        copied[block] += count * (tensor.dtype == HALF and tensor.requires_grad)
        largest = max(largest, count)
    return _Pass(numbers, copied, products, largest)
