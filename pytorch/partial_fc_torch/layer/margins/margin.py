"""What a margin is: the logit of a row's own class, and possibly those of the others.

Shapes: G global batch, T classes of a tile.
"""

from typing import NamedTuple

import torch

from partial_fc.utils.options import checked


class Targets(NamedTuple):
    """The targets of a batch. A row whose center is on another rank holds any numbers.

    Attributes:
        value: (G,) float64, target logit / s.
        by_cosine: (G,) float64, its derivative by the cosine.
        by_norm: (G,) float64, its derivative by the norm of the feature; None for 0.
        penalty: (G,) float64, what the loss of the row gets in addition; None for 0.
        penalty_by_norm: (G,) float64, the derivative of the penalty by the norm; None for 0.
        of_negatives: what `Margin.negatives` reads of this step, in any shape.
    """

    value: torch.Tensor
    by_cosine: torch.Tensor
    by_norm: torch.Tensor | None = None
    penalty: torch.Tensor | None = None
    penalty_by_norm: torch.Tensor | None = None
    of_negatives: torch.Tensor | None = None

    def gradient_by_norms(self, d_target_logits: torch.Tensor, scale: float) -> torch.Tensor | None:
        """Returns the derivatives (G,) of the losses of the rows by the norms of their features; None for 0.

        Args:
            d_target_logits: (G,) float64, derivatives of the losses by the target logits.
            scale: s.
        """
        if self.by_norm is None:
            return self.penalty_by_norm
        by_norm = scale * self.by_norm * d_target_logits
        return by_norm if self.penalty_by_norm is None else by_norm + self.penalty_by_norm


class Margin(torch.nn.Module):
    """The margin of a margin softmax; a subclass defines `targets`.

    Its state is in buffers, of which every rank has the same values: they follow from the features of all ranks. They
    move to the device of the layer, and are saved with it.

    Args:
        scale: s; a logit without a margin is s times the cosine.

    Attributes:
        needs_all_targets: `targets` gets the cosines of all rows, also those whose centers other ranks hold, for one
            more all-gather of (G,) numbers.
        slopes_negatives: `negatives` returns slopes. They take as much memory as the logits.
    """

    needs_all_targets = False
    slopes_negatives = False

    def __init__(self, scale: float):
        super().__init__()
        (self.scale,) = checked("combined", s=scale)

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """Computes the target logits of a step, and updates the state if the module is in training mode.

        It is called once in a step. No operation may wait for the device.

        Args:
            cosine: (G,) float64, between features and the centers of their labels; see ``needs_all_targets``.
            norms: (G,) float64, Euclidean norms of the features, the same on all ranks.
            labels: (G,) int64, the same on all ranks.
        """
        raise NotImplementedError

    def negatives(self, logits: torch.Tensor, targets: Targets) -> torch.Tensor | None:
        """Changes the logits of a tile in place; the targets among them are set afterwards.

        It may be called again for the backward pass, when the state may be that of a later step: what it reads of the
        state belongs into `Targets.of_negatives`.

        Args:
            logits: (G, T), s times the cosines.
            targets: of the batch, from `targets`.

        Returns:
            (G, T), derivatives of the results by the arguments; None if all are 1, or the result is the lowest number
            of its type, which has no part in the softmax.
        """
        return None
