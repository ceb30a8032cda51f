"""The interface of objectives: the loss of a row as a function of its negatives and of its labels' logits.

Shapes: G global batch, P labels of a row, T classes of a tile, R ranks.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Losses(NamedTuple):
    """The losses of the rows, with their derivatives; all float64."""

    values: torch.Tensor  # (G,)
    by_negatives: torch.Tensor  # (G,), at least 0
    by_targets: torch.Tensor  # (G, P)
    by_cosines: torch.Tensor  # (G, P)
    by_parameters: tuple[torch.Tensor, ...] = ()  # derivatives of the sum over the rows, see Objective


class LogSumExp:
    """Sums the negatives of a row as N = log sum_j exp(logit_j).

    The sum of a tile or a rank is stored as two numbers per row: the largest logit m, and sum_j exp(logit_j - m).
    """

    @staticmethod
    def tile(logits: torch.Tensor, log_weights: torch.Tensor | None) -> torch.Tensor:
        """Returns the sums of a tile (2, G), and replaces its logits (G, T) by exp(logit - m)."""
        if log_weights is not None:
            logits.add_(log_weights)
        # Without any negative, m is finite, so that exp(-inf - m) is 0.
        maximum = logits.amax(dim=1).clamp_(min=torch.finfo(logits.dtype).min)
        return torch.stack([maximum, logits.sub_(maximum[:, None]).exp_().sum(dim=1)])

    @staticmethod
    def combine(sums: torch.Tensor) -> torch.Tensor:
        """Combines the sums of tiles or ranks (n, 2, G) float64 to (2, G)."""
        maximum = sums[:, 0].amax(dim=0)
        return torch.stack([maximum, (sums[:, 1] * (sums[:, 0] - maximum).exp()).sum(dim=0)])

    @staticmethod
    def negatives(sums: torch.Tensor) -> torch.Tensor:
        """Returns N (G,) for combined sums (2, G)."""
        return sums[0] + sums[1].log()

    @staticmethod
    def row_term(sums: torch.Tensor, by_negatives: torch.Tensor) -> torch.Tensor:
        """Returns u = N - log a (G,) float64, given the derivatives a of the losses with respect to N.

        The gradient with respect to a logit is a exp(logit - N) = exp(logit - u). Late in a training, a is too small
        for float32, and u is not.
        """
        return torch.where(by_negatives > 0, LogSumExp.negatives(sums) - by_negatives.log(), torch.inf)

    @staticmethod
    def gradients(logits: torch.Tensor, log_weights: torch.Tensor | None, row_term: torch.Tensor) -> None:
        """Replaces the logits (G, T) of a tile by the gradient with respect to them, given u (G,)."""
        if log_weights is not None:
            logits.add_(log_weights)
        logits.sub_(row_term.to(logits.dtype)[:, None]).exp_()

    @staticmethod
    def factors(sums: torch.Tensor, row_term: torch.Tensor) -> torch.Tensor:
        """Returns the factors (G,) that turn the result of `tile`, with these sums (2, G), into gradients."""
        return (sums[0] - row_term).exp()


class Objective(torch.nn.Module):
    """The loss of a row; a subclass defines `forward`, and autograd computes its derivatives.

    Every rank computes the losses of all rows. Buffers and parameters have the same values on every rank, because they
    follow from the rows of all ranks. The layer updates the parameters with its learning rate. In each step, all ranks
    take rank 0's parameters, in the type of the centers: float64 values are rounded to float32 by default.

    Attributes:
        term: how the negatives of a row are summed, LogSumExp or SoftplusSum in one_versus_all.py.
        reads_cosines: whether `forward` uses ``cosines``; otherwise they are not sent to all ranks.
        slopes_negatives: whether `change_negatives` returns derivatives, which take as much memory as the logits.
    """

    term: type[LogSumExp] = LogSumExp
    reads_cosines = True
    slopes_negatives = False

    def forward(
        self, negatives: torch.Tensor, targets: torch.Tensor, cosines: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """Returns the losses (G,) of the rows, which must not decrease with ``negatives``.

        Use logaddexp, softplus and expm1: late in a training, N and the logits of the labels differ by 40 and more.

        Args:
            negatives: (G,) float64, the sum N over the classes that are not labels of the row; see ``term``. It is -inf
                if a LogSumExp has no such class.
            targets: (G, P) float64, logits of the row's labels, with margin and scale; 0 where a label is missing.
            cosines: (G, P) float64, the same without margin: s times the cosines.
            present: (G, P) bool, whether the label exists; each row has at least one.
        """
        raise NotImplementedError

    def change_negatives(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Changes the logits (G, T) of a tile in place, after the margin; returns the derivatives (G, T), None for 1.

        It may be called again in the backward pass.
        """
        return None

    def trained(self) -> list[torch.nn.Parameter]:
        """Returns the parameters that are not frozen."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def set_parameters(self, values: torch.Tensor) -> None:
        """Sets all parameters from the beginning of a vector."""
        start = 0
        for parameter in self.parameters():
            parameter.data.copy_(values[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()

    def losses(self, sums: torch.Tensor, targets: torch.Tensor, cosines: torch.Tensor, present: torch.Tensor) -> Losses:
        """Returns the losses and their derivatives; a row without any label has a loss of 0.

        Args:
            sums: sums of the negatives over all ranks (2, G) float64, see ``term``.
            targets, cosines, present: see `forward`; ``present`` may be False for all labels of a row.
        """
        labeled = present.any(dim=1)
        # The results of such rows are dropped, but must be finite, because 0 times infinity is not 0.
        negatives = self.term.negatives(sums)
        inputs = torch.where(labeled, negatives, 0.0), targets, cosines
        parameters = self.trained()
        with torch.enable_grad():
            variables = tuple(each.clone().requires_grad_() for each in inputs)
            values = self(*variables, present | ~labeled[:, None])
            if values.shape != labeled.shape:
                raise ValueError(f"the objective returns {tuple(values.shape)}, not one loss per row")
            total = torch.where(labeled, values, 0.0).sum()
        by = torch.autograd.grad(total, (*variables, *parameters), materialize_grads=True)
        return Losses(torch.where(labeled, values.detach(), unlabeled(negatives)), by[0], by[1], by[2], by[3:])


class FunctionObjective(Objective):
    """An objective that a function computes, with the arguments and the result of Objective.forward."""

    def __init__(self, function: Callable[..., torch.Tensor]):
        super().__init__()
        self.function = function

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        return self.function(negatives, targets, cosines, present)


def unlabeled(negatives: torch.Tensor) -> torch.Tensor:
    """Returns the losses (G,) of rows without labels: 0, or NaN if their features or the centers are not finite."""
    return torch.where(negatives.isnan(), negatives, 0.0)


def mean_of_present(values: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Returns the mean (G,) over the labels that exist, given values (G, P)."""
    return torch.where(present, values, 0.0).sum(dim=1) / present.sum(dim=1)
