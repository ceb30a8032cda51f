"""A copy of the bank's unit rows in the type of the products.

With it, both passes read 2E bytes of a center in float16 instead of 4E, and convert nothing.

Shapes: N rows of the bank, E embedding.
"""

import logging

import torch

from partial_fc.utils.text import amount

from ...device_defaults import gpu_facts
from ..rows import StepCenters, inverse_norms, is_narrow

BLOCK = 2**16  # rows that are converted at a time


class UnitRows:
    """The unit rows of a bank in 16 bits; update_kernel writes them together with the centers.

    Args:
        dtype: type of the products; there is a copy in 16 bits alone.
        wanted: whether to keep a copy; None keeps one if a tenth of the GPU's memory stays free.
    """

    def __init__(self, dtype: torch.dtype, wanted: bool | None):
        self.dtype, self.wanted = dtype, wanted
        self._rows: torch.Tensor | None = None  # (N rounded up, E)
        self._of: tuple[torch.Tensor, int] | None = None  # the centers that were copied, and their version
        self._decided: tuple[torch.Size, bool] | None = None  # whether a copy of centers of this shape fits

    def of(self, sampled: StepCenters, multiple: int) -> torch.Tensor | None:
        """Returns the unit rows of the bank, padded with zeros to a multiple; None if there is no copy.

        A change of the centers that PyTorch has seen makes a new copy.
        """
        weight = sampled.weight
        if not self._copies(sampled):
            self._rows = self._of = None
            return None
        if self._rows is None or not self._is_current(weight):
            shape = -(-len(weight) // multiple) * multiple, weight.shape[1]
            if self._rows is None or self._rows.shape != shape:
                self._rows = None  # frees the memory first
                self._rows = weight.new_zeros(shape, dtype=self.dtype)
            for start in range(0, len(weight), BLOCK):
                block = weight[start : start + BLOCK]
                self._rows[start : start + len(block)] = block * inverse_norms(block)[:, None]
            self.updated(sampled)
        return self._rows

    def updated(self, sampled: StepCenters) -> None:
        """Declares the rows up to date, after an update has written them with the centers."""
        if self._rows is not None:
            self._of = sampled.weight, sampled.weight._version

    def _is_current(self, weight: torch.Tensor) -> bool:
        if self._of is None:
            return False
        copied, version = self._of  # keeps the memory of the centers, so that no others have its address
        return copied.data_ptr() == weight.data_ptr() and copied.shape == weight.shape and version == weight._version

    def _copies(self, sampled: StepCenters) -> bool:
        weight = sampled.weight
        # Rows in host memory come and go with a step. An inference tensor has no version.
        if self.dtype.itemsize != 2 or self.wanted is False or sampled.local_rows is not None or is_narrow(weight):
            return False
        if weight.is_inference():
            return False
        if self._decided is None or self._decided[0] != weight.shape:
            gpu, needed = gpu_facts(weight.device), 2 * weight.numel()
            fits = True
            if self.wanted is None and gpu is not None:
                # The backbone has run its forward pass, so that nearly all memory of a step is allocated.
                free, _ = torch.cuda.mem_get_info(weight.device)
                fits = needed < free - gpu.memory // 10
            self._decided = weight.shape, fits
            if fits:
                logging.info("the layer keeps a copy of its unit centers in 16 bits, of %s", amount(needed))
        return self._decided[1]
