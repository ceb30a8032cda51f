"""The interface of margins, which change the logit of a row's class, and possibly the other logits.

Shapes: G global batch, P labels of an item, T classes of a tile.
"""

from typing import NamedTuple

import torch

from partial_fc.utils.options import checked


class Targets(NamedTuple):
    """The targets of a batch, usually one per row. Where the center is on another rank, the values are arbitrary.

    Attributes:
        value: (G,) float64, target logit / s.
        by_cosine: (G,) float64, derivative of ``value`` by the cosine.
        by_norm: (G,) float64, derivative of ``value`` by the norm of the feature; None for 0.
        penalty: (G,) float64, added to the loss of the row; None for 0.
        penalty_by_norm: (G,) float64, derivative of the penalty by the norm; None for 0.
        of_negatives: data of this step for `Margin.negatives`, in any shape.
        hardest: (G,), set by the layer if the margin has ``hardest``, k: halfway between the logits of the row's k-th
            and next hardest negatives over all ranks, so that rounding errors do not change on which side a negative
            is; -inf if there are at most k.
    """

    value: torch.Tensor
    by_cosine: torch.Tensor
    by_norm: torch.Tensor | None = None
    penalty: torch.Tensor | None = None
    penalty_by_norm: torch.Tensor | None = None
    of_negatives: torch.Tensor | None = None
    hardest: torch.Tensor | None = None


class Margin(torch.nn.Module):
    """The margin of a margin softmax; a subclass defines `targets`.

    Its state is in buffers, which have the same values on every rank, because they follow from the features of all
    ranks. They move with the layer, and are saved with it.

    Args:
        scale: s; a logit without a margin is s times the cosine.

    Attributes:
        needs_one_label: whether items may have only one label, because `negatives` depends on its logit.
        needs_all_targets: whether `targets` needs the cosines of all rows, wherever their centers are; costs
            another all-gather of (G,).
        hardest: number of a row's hardest negatives that `negatives` changes, see Targets.hardest; costs another
            all-gather of (hardest + 1, G), and a further computation of the logits that the layer does not cache.
        slopes_negatives: whether `negatives` returns slopes, which take as much memory as the logits.
    """

    needs_one_label = False
    needs_all_targets = False
    hardest = 0
    slopes_negatives = False

    def __init__(self, scale: float):
        super().__init__()
        (self.scale,) = checked("combined", s=scale)

    def targets(self, cosine: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """Computes the target logits of a step, and updates the state if the module is in training mode.

        Called once per step. No operation may wait for the device. If items have P > 1 labels, cosines and labels are
        (G, P), -1 for a missing label, and norms (G, 1); the result has the shape of the cosines, or one that expands
        to it.

        Args:
            cosine: (G,) float64, cosines of features and the centers of their labels; see ``needs_all_targets``.
            norms: (G,) float64, Euclidean norms of the features, the same on all ranks.
            labels: (G,) int64, the same on all ranks.
        """
        raise NotImplementedError

    def take_options(self, other: "Margin") -> None:
        """Takes the attributes of a margin that was made with other arguments; keeps parameters and buffers."""
        of_module = vars(torch.nn.Module())
        for module, source in zip(self.modules(), other.modules()):
            vars(module).update((name, value) for name, value in vars(source).items() if name not in of_module)

    def of_labels(self, cosines: torch.Tensor, norms: torch.Tensor, labels: torch.Tensor) -> Targets:
        """Calls `targets` for any number of labels.

        Args:
            cosines: (G, P) float64.
            norms: (G,) float64.
            labels: (G, P) int64.

        Returns:
            The targets: penalties (G,), ``of_negatives`` as it is, the rest (G, P).

        Raises:
            ValueError: Items have several labels, and the margin needs one.
        """
        if labels.shape[1] == 1:
            targets = self.targets(cosines[:, 0], norms, labels[:, 0])
            by_norm = None if targets.by_norm is None else targets.by_norm[:, None]
            return targets._replace(value=targets.value[:, None], by_cosine=targets.by_cosine[:, None], by_norm=by_norm)
        if self.needs_one_label:
            raise ValueError(
                f"{type(self).__name__} changes negatives by the label of an item, so an item has only one"
            )
        targets = self.targets(cosines, norms[:, None], labels)
        value, by_cosine, by_norm = (None if each is None else each.expand_as(cosines) for each in targets[:3])
        penalties = (None if each is None else each.flatten() for each in targets[3:5])
        return Targets(value, by_cosine, by_norm, *penalties)

    def negatives(self, logits: torch.Tensor, targets: Targets) -> torch.Tensor | None:
        """Changes the logits of a tile in place; the targets among them are overwritten afterwards.

        It may be called again in the backward pass, when the state may already belong to a later step. Read the state
        only through `Targets.of_negatives`.

        Args:
            logits: (G, T), s times the cosines.
            targets: result of `targets` for the batch.

        Returns:
            (G, T), derivatives of the results by the arguments; None if they are 1. They do not matter where the result
            is the lowest value of its type, which excludes the negative from the softmax.
        """
        return None
