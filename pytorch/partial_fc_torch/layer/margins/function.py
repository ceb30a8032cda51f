"""Any function of PyTorch as a margin.

Shapes: G global batch.
"""

from typing import Protocol

import torch

from .margin import Margin, Targets


class Function(Protocol):
    """Computes the target logits of a batch, see FunctionMargin."""

    def __call__(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor, /) -> torch.Tensor:
        """Returns target logits (G,)."""
        ...


class FunctionMargin(Margin):
    """A margin by its target logits, whose derivatives autograd computes.

    Args:
        function: (cosine (G,), norms (G,), labels (G,)) -> target logits (G,), s included. Cosines and norms are
            float64; see Margin.targets. A torch.nn.Module becomes a part of this one, with its buffers as state.
        scale: s of the other logits.
    """

    def __init__(self, function: Function, scale: float):
        super().__init__(scale)
        self.function = function

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """See Margin.targets."""
        with torch.enable_grad():
            cosine, norms = cosine.detach().requires_grad_(), norms.detach().requires_grad_()
            value = self.function(cosine, norms, labels) / self.scale
            total = value.sum()  # each target depends on its own row: its derivative has those of all
        if value.shape != cosine.shape:
            raise ValueError(
                f"the margin {self.function!r} returns {tuple(value.shape)} target logits for a batch of "
                f"{len(cosine)}: return one per row"
            )
        by_cosine, by_norm = torch.autograd.grad(total, (cosine, norms), materialize_grads=True)
        return Targets(value.detach().double(), by_cosine, by_norm)
