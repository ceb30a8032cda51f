"""The labels of all micro-batches of an update, which the ranks exchange before its first features.

Shapes: nB items of an update of this rank, R ranks, P labels of an item.
"""

import torch

from partial_fc.utils.text import plural

from ..collectives import all_gather_rows
from .exchange import LayerExchange, labels_per_item

OTHER_SHAPE = -3  # sent in place of labels that do not have the agreed shape


class UpdateLabels:
    """Gathers the labels of updates that consist of micro-batches.

    Attributes:
        agreed: (nB, P), once the ranks have agreed on it.
    """

    def __init__(self, exchange: LayerExchange):
        self._exchange, self.agreed = exchange, (0, 0)

    def gather(self, labels, count: int, device: torch.device) -> torch.Tensor:
        """Gathers the labels of all ranks: (R, nB, P) int64 on the device, negative where there is none in 0..C-1.

        Collectives: all-gather ``labels``, (1, nB, P) -> (R, nB, P). A rank whose labels have another shape than in the
        previous call sends OTHER_SHAPE in the previous shape. In the first call, and if the shape has changed on all
        ranks, also gathers ``micro_batches``, the shapes and errors. If it has changed on some ranks only, the next
        step raises an error on all of them: until then the other ranks do not know, and may run collectives in their
        backbone.

        Args:
            labels: (nB,) or (nB, P) integers.
            count: n.
            device: the result's device.

        Raises:
            JobError: On every rank, if nB is not a multiple of n, or the shapes differ between ranks in the first call
                or after a change on all ranks.
        """
        shape, exchange = (len(labels), labels_per_item(labels)), self._exchange
        if not any(self.agreed):
            self._agree(shape, count)
        agreed, exchange.refusal = self.agreed, None
        if exchange.agreed:  # otherwise the first step will agree on it
            exchange.agreed = agreed[0] // count, agreed[1]
        gathered = self._gathered(labels, shape, device)
        if shape == agreed:
            return gathered
        with exchange.waiting("all-gather labels"):
            changed_on_all = bool((gathered == OTHER_SHAPE).all())
        if changed_on_all:
            self.agreed = (0, 0)
            return self.gather(labels, count, device)
        before, now = (f"{items} items of {plural(each, 'label')}" for items, each in (agreed, shape))
        exchange.refusal = ValueError(
            f"the ranks had {before} each in the previous update, but one has {now}: give all ranks the same number"
        )
        return gathered

    def _agree(self, shape: tuple[int, int], count: int) -> None:
        error = None
        if shape[0] == 0 or shape[0] % count:
            error = ValueError(f"{shape[0]} items cannot be divided into gradient_acc={count} equal micro-batches")
        rows, number = self._exchange.agree("micro_batches", shape, error)
        self.agreed = rows, number

    def _gathered(self, labels, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        local = torch.full((1, *self.agreed), OTHER_SHAPE, device=device)
        if shape == self.agreed:
            local = self._exchange.clean(labels, device)[None]
        with self._exchange.waiting("all-gather labels"):
            return all_gather_rows(local, self._exchange.size)
