"""Any function of PyTorch as a margin.

Shapes: G global batch.
"""

from typing import Protocol

import torch

from .margin import Margin, Targets


class Function(Protocol):
    """A function that computes the target logits of a batch, see FunctionMargin."""

    def __call__(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor, /) -> torch.Tensor:
        """Returns the target logits (G,)."""
        ...


class FunctionMargin(Margin):
    """A margin defined by a function for the target logits; autograd computes the derivatives.

    Args:
        function: maps cosines (G,), norms (G,) and labels (G,) to target logits (G,), which include s. Cosines and
            norms are float64; see Margin.targets. A torch.nn.Module becomes a submodule, whose buffers are the state.
        scale: s of the other logits.
    """

    def __init__(self, function: Function, scale: float):
        super().__init__(scale)
        self.function = function

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        with torch.enable_grad():
            cosine, norms = (each.detach().clone().requires_grad_() for each in (cosine, norms.expand_as(cosine)))
            value = self.function(cosine, norms, labels) / self.scale
            total = value.sum()  # a target depends only on its row, so the sum has the derivatives of all targets
        if value.shape != cosine.shape:
            raise ValueError(
                f"the margin {self.function!r} returns {tuple(value.shape)} target logits for a batch of "
                f"{len(cosine)}: return one per row"
            )
        by_cosine, by_norm = torch.autograd.grad(total, (cosine, norms), materialize_grads=True)
        return Targets(value.detach().double(), by_cosine, by_norm)
