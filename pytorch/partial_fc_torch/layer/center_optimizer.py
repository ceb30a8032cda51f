"""The update of the centers of PartialFC as an optimizer of PyTorch.

Shapes: S centers of a step of this rank, E embedding.
"""

import logging
import weakref
from collections.abc import Callable, Sequence

import torch

from ..eager_optimizer import EagerOptimizer
from .rows import to_device

MANY_PASSES = 1000  # more than any accumulation needs


class CenterOptimizer(EagerOptimizer):
    """Applies the gradient accumulated by the backward passes of PartialFC with ``update_in_backward=False``.

    It has one group with the parameter ``rows`` and the objective's parameters, if any, which take plain steps of
    gradient descent; the next step sets them to the values of rank 0, in case ranks differ. Schedulers may change the
    group's ``lr``. Gradient clipping, torch.amp.GradScaler and `zero_grad` find the gradient of this rank's sampled
    centers in the ``grad`` of ``rows``. A step also draws new negatives for the following forward passes; all passes
    between two steps share the same negatives. If the backward pass updates the centers itself, there is never a
    gradient here, and `step` does nothing.

    Args:
        update: a method of the layer that updates the centers, given their sorted local indices (S,) int64 and their
            gradient (S, E), which it may overwrite.
        parameters: of the objective, the same on all ranks.

    Attributes:
        rows: parameter whose ``grad`` is (S, E), or None before the first backward pass and after a step. Its values
            have no meaning.
        index: (S,) int64, the sorted local indices of these centers.
        parameters: as above.
    """

    def __init__(
        self, update: Callable[[torch.Tensor, torch.Tensor], None], parameters: Sequence[torch.nn.Parameter] = ()
    ):
        # The layer owns this object: a reference back would keep its arrays until the garbage collector runs.
        self._update = weakref.WeakMethod(update)
        self.rows = torch.nn.Parameter(torch.empty(0))
        self.index = torch.empty(0, dtype=torch.int64)
        self.parameters, self._passes = list(parameters), 0
        super().__init__([self.rows, *self.parameters], {"lr": None})

    @torch.no_grad()
    def update_parameters(self, gradients: Sequence[torch.Tensor]) -> None:
        """Updates the parameters of the objective."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.sub_(self.param_groups[0]["lr"] * gradient)

    @torch.no_grad()
    def accumulate(
        self, index: torch.Tensor, gradient: torch.Tensor, by_parameters: Sequence[torch.Tensor] = ()
    ) -> None:
        """Adds the gradient of a pass to the sum of earlier passes.

        Args:
            index: (S,) int64, sorted local indices of the centers.
            gradient: (S, E), with respect to these centers.
            by_parameters: gradients with respect to the parameters of the objective.
        """
        self._passes += 1
        if self._passes == MANY_PASSES:
            logging.warning(
                "%d backward passes of the layer without layer.optimizer.step(): its centers do not move, and other "
                "optimizers do not move them either",
                MANY_PASSES,
            )
        for parameter, added in zip(self.parameters, by_parameters, strict=True):
            added = added.to(parameter.dtype, copy=True)
            parameter.grad = added if parameter.grad is None else parameter.grad + added
        earlier, self.rows.grad = self.rows.grad, None
        if earlier is not None and torch.equal(self.index, index):
            gradient += earlier
        elif earlier is not None:  # the positives differ
            both = torch.cat([self.index, index]).unique()
            total = gradient.new_zeros(len(both), gradient.shape[1])
            for rows, values in ((self.index, earlier), (index, gradient)):
                total.index_add_(0, to_device(torch.searchsorted(both, rows), total.device), values)
            index, gradient = both, total
        self.index = index
        self.rows.data = gradient  # a parameter must have the shape of its gradient; sharing it takes no memory
        self.rows.grad = gradient

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Updates the centers, and frees the gradient.

        Args:
            closure: computes the loss and calls its backward pass, as for any optimizer of PyTorch.

        Returns:
            The return value of ``closure``.

        Raises:
            ValueError: The group has no ``lr``.
        """
        loss = closure and torch.enable_grad()(closure)()
        if self.rows.grad is not None:
            update = self._update()
            assert update is not None, "the layer still exists"
            update(self.index, self.rows.grad)
            if self.parameters:
                self.update_parameters([parameter.grad for parameter in self.parameters])
            self.zero_grad()
        self._passes = 0
        return loss
