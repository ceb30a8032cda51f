"""The layer as the projection of WeSpeaker's own training loop, see docs/speakers.md.

Shapes: B utterances of this rank, E embedding, C speakers.
"""

from collections.abc import Mapping
from typing import Any

import torch

from partial_fc_torch import InterTopK, PartialFC_V2

MARGIN = 0.2  # at which the penalty is ``mp``


class Projection(torch.nn.Module):
    """Replaces WeSpeaker's ``arc_margin_intertopk_subcenter``, with the speakers divided between the ranks.

    WeSpeaker's optimizer updates the centers of this rank, as those of its own projection, because the loop averages
    only the gradients of the other parameters: call partial_fc.exclude_from_ddp(model) before DistributedDataParallel.

    Args:
        conf: ``projection_args`` of WeSpeaker's configuration.

    Attributes:
        margin: read by WeSpeaker's log.
        layer: PartialFC_V2.
    """

    def __init__(self, conf: Mapping[str, Any]):
        super().__init__()
        self.scale, self.penalty = conf["scale"], 0.0 if conf.get("do_lm") else conf.get("mp", 0.06)
        self.k, self.num_classes, self.margin = conf.get("k_top", 5), conf["num_class"], 0.0
        sub_centers = conf.get("K", 3)
        self.layer = PartialFC_V2(self._loss(), conf["embed_dim"], self.num_classes, 1.0, sub_centers=sub_centers)

    def _loss(self) -> InterTopK:
        return InterTopK(self.scale, self.margin, self.k, self.penalty * self.margin / MARGIN)

    def update(self, margin: float) -> None:
        """Sets the margin, and the penalty in proportion; called by WeSpeaker's MarginScheduler."""
        self.margin = margin
        self.layer.margin.take_options(self._loss())

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns zeros (B, C), which take no memory, and the mean loss over the batches of all ranks.

        The loop would measure its accuracy on all logits, which never exist, so the accuracy that it logs is
        meaningless.
        """
        return embeddings.new_zeros(1, 1).expand(len(labels), self.num_classes), self.layer(embeddings, labels)
