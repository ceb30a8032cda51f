"""Chooses between the kernels and PyTorch's operators for the passes of a layer."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...device_defaults import gpu_facts
from ..objectives import LogSumExp, Objective
from ..optimizers import RowOptimizer
from ..step import Loss, Step
from ..torch_passes import TorchPasses

if TYPE_CHECKING:
    from .triton_passes import TritonPasses

LEAST_CAPABILITY = (8, 0)  # the first one with TF32 and bfloat16
FUSED = {"mm": False, "triton": True}  # value of layer_kernel -> TritonPasses.fused


class Form(NamedTuple):
    """What determines the form in which a step runs the kernels."""

    device: torch.device
    dtype: torch.dtype
    labels_per_item: int  # P
    gathered: bool  # whether the centers of a step are a part of those in memory
    weighted: bool  # whether the negatives have weights

    @classmethod
    def of(cls, step: Step) -> Form:
        """Returns the form of a step."""
        unit, gathered = step.features.unit, step.sampled.rows is not None
        return cls(unit.device, unit.dtype, step.labels.columns.shape[1], gathered, step.log_weights is not None)


def chosen_passes(
    of_torch: TorchPasses, step: Step, optimizer: RowOptimizer | None, kernel: str, unit_copy: bool | None = None
) -> TorchPasses | TritonPasses:
    """Returns the kernels if they support a layer and agree with PyTorch's operators; otherwise ``of_torch``.

    Args:
        of_torch: the passes with PyTorch's operators.
        step: a step of the layer, before its passes.
        optimizer: the centers' optimizer, compared with the kernels' update; None for a dense gradient.
        kernel: "mm", "triton", or "auto" for the fastest of all three in a part of the step.
        unit_copy: see UnitRows.
    """
    candidates: list[TorchPasses | TritonPasses] = [of_torch] if kernel == "auto" else []
    for name, fused in FUSED.items():
        if kernel not in (name, "auto"):
            continue
        reason = why_not(of_torch.loss, step.features.unit, fused)
        if not reason:
            try:
                candidates.append(_agreeing_kernels(of_torch, step, optimizer, fused, unit_copy))
            # An error of the compiler or the driver, or results that differ.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        if reason and (kernel != "auto" or name == "mm"):
            logging.warning("the layer computes without the kernels of layer_kernel=%s: %s", name, reason)
    if not candidates:
        return of_torch
    seconds = _seconds(candidates, step, optimizer) if len(candidates) > 1 else [0.0]
    fastest = min(range(len(candidates)), key=seconds.__getitem__)
    names = [next((name for name, fused in FUSED.items() if each.fused is fused), "torch") for each in candidates]
    measured = ", ".join(f"{name} {1000 * taken:.3g} ms" for name, taken in zip(names, seconds))
    logging.info("the layer computes with layer_kernel=%s%s", names[fastest], f": {measured}" if seconds[0] else "")
    return candidates[fastest]


def why_not(loss: Loss, unit: torch.Tensor, fused: bool) -> str:
    """Returns why the kernels do not support a layer; "" if they do."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    gpu = gpu_facts(unit.device)
    if gpu is None:
        import triton  # imported here, because it takes a noticeable fraction of a second

        if not (unit.is_cpu and triton.knobs.runtime.interpret):  # tests use Triton's interpreter on the CPU
            return f"the kernels are for GPUs, and the layer is on {unit.device}"
    if gpu is not None and gpu.capability < LEAST_CAPABILITY:
        return f"the kernels need a GPU of compute capability 8.0 or newer, and {gpu.name} has {gpu.capability}"
    if unit.dtype != torch.float32:
        return f"the layer computes in {unit.dtype}, not torch.float32"
    if fused and gpu is not None and loss.products.unit_type.itemsize != 2:
        return "layer_dtype is neither float16 nor bfloat16"
    if loss.sub_centers > 1:
        return "the kernels do not have sub-centers"
    objective = loss.objective
    if objective.term is not LogSumExp or type(objective).change_negatives is not Objective.change_negatives:
        return f"the kernels do not have the negatives of {type(objective).__name__}"
    from .triton_passes import NEGATIVES

    if type(loss.margin).negatives not in NEGATIVES:
        return f"the kernels do not have the negatives of {type(loss.margin).__name__}"
    return ""


def _agreeing_kernels(
    of_torch: TorchPasses, step: Step, optimizer: RowOptimizer | None, fused: bool, unit_copy: bool | None
) -> TritonPasses:
    """Returns the kernels after a comparison with PyTorch's operators on random numbers."""
    from .blocks import SMALLEST, blocks_for
    from .selfcheck import require_agreement
    from .triton_passes import TritonPasses

    loss, gpu = of_torch.loss, gpu_facts(step.features.unit.device)
    blocks = SMALLEST
    if gpu is not None:
        blocks = blocks_for(gpu.capability, gpu.processors, gpu.cache, fused, loss.margin.slopes_negatives)
    passes = TritonPasses(loss, of_torch.tile_classes, blocks, fused, unit_copy)
    require_agreement(passes, Form.of(step), step.features.unit.shape[1], optimizer)
    return passes


def _seconds(candidates: list[TorchPasses | TritonPasses], step: Step, optimizer: RowOptimizer | None) -> list[float]:
    """Returns the time of each for a part of a step; if memory is too small, the kernels, which need less, win."""
    from .selfcheck import times

    try:
        return times(candidates, step, optimizer)
    except torch.OutOfMemoryError as error:
        logging.warning("too little memory to measure the implementations of the layer: %s", error)
        return [float(number == 0) for number in range(len(candidates))]
