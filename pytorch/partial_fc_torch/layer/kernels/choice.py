"""Chooses between the fused kernels and PyTorch's operators for the passes of a layer."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

import torch

from ...device_defaults import gpu_facts
from ..objectives import LogSumExp, Objective
from ..optimizers import RowOptimizer
from ..step import Loss
from ..torch_passes import TorchPasses

if TYPE_CHECKING:
    from .triton_passes import TritonPasses

LEAST_CAPABILITY = (8, 0)  # the first one with TF32 and bfloat16


def chosen_passes(
    of_torch: TorchPasses, unit: torch.Tensor, labels_per_item: int, optimizer: RowOptimizer | None
) -> TorchPasses | TritonPasses:
    """Returns the kernels if they support a layer and agree with PyTorch's operators; otherwise ``of_torch``.

    Args:
        of_torch: the passes with PyTorch's operators.
        unit: (G, E) unit rows of features, on the layer's device and in its type.
        labels_per_item: P.
        optimizer: the centers' optimizer, compared with the kernels' update; None for a dense gradient.
    """
    reason = why_not(of_torch.loss, unit)
    if not reason:
        try:
            return _agreeing_kernels(of_torch, unit, labels_per_item, optimizer)
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
    of_torch: TorchPasses, unit: torch.Tensor, labels_per_item: int, optimizer: RowOptimizer | None
) -> TritonPasses:
    """Returns the passes with kernels, after comparing them with PyTorch's operators on random numbers."""
    from .blocks import SMALLEST, blocks_for
    from .selfcheck import require_agreement
    from .triton_passes import TritonPasses

    loss, gpu = of_torch.loss, gpu_facts(unit.device)
    half, slopes = loss.products.dtype == "bfloat16", loss.margin.slopes_negatives
    blocks = SMALLEST if gpu is None else blocks_for(gpu.capability, gpu.processors, half, slopes)
    fused = TritonPasses(loss, of_torch.tile_classes, blocks)
    require_agreement(fused, unit.device, unit.shape[1], labels_per_item, optimizer)
    logging.info("the layer computes with fused kernels, which agree with PyTorch's operators")
    return fused
