"""Chooses between the fused kernels and PyTorch's operators for the passes of a layer."""

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
    of_torch: TorchPasses, step: Step, optimizer: RowOptimizer | None, measures: bool
) -> TorchPasses | TritonPasses:
    """Returns the kernels if they support a layer and agree with PyTorch's operators; otherwise ``of_torch``.

    Args:
        of_torch: the passes with PyTorch's operators.
        step: a step of the layer, before its passes.
        optimizer: the centers' optimizer, compared with the kernels' update; None for a dense gradient.
        measures: whether the kernels must also be faster, for which both are measured.
    """
    reason = why_not(of_torch.loss, step.features.unit)
    if not reason:
        try:
            return _agreeing_kernels(of_torch, step, optimizer, measures)
        # An error of the compiler or the driver, or results that differ: fall back to PyTorch's operators.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    logging.warning("the layer computes with PyTorch's operators instead of fused kernels: %s", reason)
    return of_torch


def why_not(loss: Loss, unit: torch.Tensor) -> str:
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
        return f"the centers are {unit.dtype}, not torch.float32"
    if loss.products.dtype not in ("tf32", "bfloat16"):
        return "layer_dtype is neither tf32 nor bfloat16"
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
    of_torch: TorchPasses, step: Step, optimizer: RowOptimizer | None, measures: bool
) -> TorchPasses | TritonPasses:
    """Compares the kernels with PyTorch's operators on random numbers; returns the faster ones, or the kernels."""
    from .blocks import SMALLEST, blocks_for
    from .selfcheck import relative_time, require_agreement
    from .triton_passes import TritonPasses

    loss, form, gpu = of_torch.loss, Form.of(step), gpu_facts(step.features.unit.device)
    half, slopes = loss.products.dtype == "bfloat16", loss.margin.slopes_negatives
    blocks = SMALLEST if gpu is None else blocks_for(gpu.capability, gpu.processors, half, slopes)
    fused = TritonPasses(loss, of_torch.tile_classes, blocks)
    require_agreement(fused, form, step.features.unit.shape[1], optimizer)
    taken = ""
    if measures:
        ratio = relative_time(fused, form, step, optimizer)
        taken = f" and take {ratio:.2f} times as long"
    if measures and ratio >= 1:
        logging.info("the layer computes with PyTorch's operators: fused kernels agree with them%s", taken)
        return of_torch
    logging.info("the layer computes with fused kernels, which agree with PyTorch's operators%s", taken)
    return fused
