"""Chooses between the fused kernels and PyTorch's operators for the passes of a layer."""

import importlib.util
import logging

import torch

from ...device_defaults import gpu_facts
from ..objectives import LogSumExp, Objective
from ..optimizers import RowOptimizer
from ..passes import Passes
from ..products import Float32Products
from ..torch_passes import TorchPasses

KERNELS = ("auto", "torch", "triton")
LEAST_CAPABILITY = (8, 0)  # the first one with TF32 and bfloat16


class PassesChoice:
    """Chooses the passes of a layer in the first step on a device, because only then the layer's device is known.

    Args:
        kernel: "torch" uses PyTorch's operators; "triton" uses the kernels if they support the layer; "auto" is
            "triton" on GPUs.
        of_torch: the passes with PyTorch's operators.
        optimizer: the centers' optimizer, compared with the kernels' update; None for a dense gradient.
        sub_centers: number of centers of a class.

    Raises:
        ValueError: ``kernel`` is none of these.
    """

    def __init__(self, kernel: str, of_torch: TorchPasses, optimizer: RowOptimizer | None, sub_centers: int = 1):
        if kernel not in KERNELS:
            raise ValueError(f"layer_kernel is {kernel!r}, expected one of {', '.join(KERNELS)}")
        self.kernel, self.of_torch, self.optimizer, self.sub_centers = kernel, of_torch, optimizer, sub_centers
        self._chosen: dict[tuple[torch.device, torch.dtype], Passes] = {}

    def __call__(self, unit: torch.Tensor) -> Passes:
        """Returns the passes for unit rows of features on this device and of this type."""
        if self.kernel == "torch":
            return self.of_torch
        key = unit.device, unit.dtype
        if key not in self._chosen:
            self._chosen[key] = self._choose(unit)
        return self._chosen[key]

    def _choose(self, unit: torch.Tensor) -> Passes:
        if unit.device.type != "cuda" and self.kernel == "auto":
            return self.of_torch
        reason = why_not(self.of_torch, unit, self.sub_centers)
        if not reason:
            try:
                return self._fused(unit)
            # An error of the compiler or the driver, or results that differ: fall back to PyTorch's operators.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        logging.warning("the layer computes with PyTorch's operators instead of fused kernels: %s", reason)
        return self.of_torch

    def _fused(self, unit: torch.Tensor) -> Passes:
        """Returns the passes with kernels, after comparing them with PyTorch's operators on random numbers."""
        from .blocks import SMALLEST, blocks_for
        from .selfcheck import require_agreement
        from .triton_passes import TritonPasses

        of_torch, gpu = self.of_torch, gpu_facts(unit.device)
        half = not isinstance(of_torch.products, Float32Products)
        slopes = of_torch.margin.slopes_negatives
        blocks = SMALLEST if gpu is None else blocks_for(gpu.capability, gpu.processors, half, slopes)
        fused = TritonPasses(of_torch.margin, of_torch.objective, of_torch.products, of_torch.tile_classes, blocks)
        require_agreement(of_torch, fused, unit.device, unit.shape[1], self.optimizer)
        logging.info("the layer computes with fused kernels, which agree with PyTorch's operators")
        return fused


def why_not(of_torch: TorchPasses, unit: torch.Tensor, sub_centers: int) -> str:
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
    products = of_torch.products
    if not products.tf32 if isinstance(products, Float32Products) else products.dtype != torch.bfloat16:
        return "layer_dtype is neither tf32 nor bfloat16"
    if sub_centers > 1:
        return "the kernels do not have sub-centers"
    objective = of_torch.objective
    if objective.term is not LogSumExp or type(objective).change_negatives is not Objective.change_negatives:
        return f"the kernels do not have the negatives of {type(objective).__name__}"
    from .triton_passes import NEGATIVES

    if type(of_torch.margin).negatives not in NEGATIVES:
        return f"the kernels do not have the negatives of {type(of_torch.margin).__name__}"
    return ""
