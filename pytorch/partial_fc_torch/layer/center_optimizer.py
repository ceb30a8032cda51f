"""The update of the centers of PartialFC as an optimizer of PyTorch.

Shapes: S centers of a step of this rank, E embedding.
"""

import weakref
from collections.abc import Callable

import torch

from ..eager_optimizer import EagerOptimizer


class CenterOptimizer(EagerOptimizer):
    """Applies the gradient that the backward passes of PartialFC with ``update_in_backward=False`` have left.

    It has one group, whose ``lr`` schedulers may change, with one parameter, ``rows``: clipping of gradients,
    torch.amp.GradScaler and `zero_grad` find the gradient of the step's centers there, which is that of this rank.
    A step also draws the negatives of the following forward passes; all passes before it share theirs.
    If the backward pass updates the centers itself, there is never a gradient here, and `step` does nothing.

    Args:
        update: (S,) int64 sorted local indices, (S, E) their gradient, which may be overwritten -> updates the centers.
            A method of the layer.

    Attributes:
        rows: parameter whose ``grad`` is (S, E), None before the first backward pass and after a step. Its values mean
            nothing.
        index: (S,) int64, the sorted local indices of the centers of these rows.
    """

    def __init__(self, update: Callable[[torch.Tensor, torch.Tensor], None]):
        # The layer owns this object: a reference back would keep its arrays until the garbage collector runs.
        self._update = weakref.WeakMethod(update)
        self.rows = torch.nn.Parameter(torch.empty(0))
        self.index = torch.empty(0, dtype=torch.int64)
        super().__init__([self.rows], {"lr": None})

    @torch.no_grad()
    def accumulate(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds the gradient (S, E) of the centers with these sorted local indices (S,) to that of earlier passes."""
        earlier, self.rows.grad = self.rows.grad, None
        if earlier is not None and torch.equal(self.index, index):
            gradient += earlier
        elif earlier is not None:  # other positives
            both = torch.cat([self.index, index]).unique()
            total = gradient.new_zeros(len(both), gradient.shape[1])
            for rows, values in ((self.index, earlier), (index, gradient)):
                total[torch.searchsorted(both, rows)] += values
            index, gradient = both, total
        self.index = index
        self.rows.data = gradient  # a gradient needs a parameter of its shape; this one takes no memory of its own
        self.rows.grad = gradient

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Updates the centers, and frees the gradient.

        Args:
            closure: computes the loss and calls its backward pass, as of any optimizer of PyTorch.

        Returns:
            What ``closure`` returns.

        Raises:
            ValueError: the group has no ``lr``.
        """
        loss = closure and torch.enable_grad()(closure)()
        if self.rows.grad is not None:
            update = self._update()
            assert update is not None, "the layer still exists"
            update(self.index, self.rows.grad)
            self.zero_grad()
        return loss
