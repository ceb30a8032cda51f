"""The layer as the projection in WeSpeaker's training loop, see docs/speakers.md.

Shapes: B utterances of this rank, E embedding, C speakers.
"""

from collections.abc import Mapping
from typing import Any

import torch

from partial_fc_torch import InterTopK, PartialFC_V2

MARGIN = 0.2  # the margin with the full penalty


class Projection(torch.nn.Module):
    """Replaces WeSpeaker's ``arc_margin_intertopk_subcenter``, with the speakers divided between the ranks.

    The centers of a rank are parameters that WeSpeaker's optimizer updates. Their gradients must not be averaged over
    the ranks: call partial_fc.exclude_from_ddp(model) before DistributedDataParallel.

    Args:
        conf: ``projection_args`` of WeSpeaker's configuration.

    Attributes:
        margin: the margin, for WeSpeaker's log.
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
        """Sets the margin and a proportional penalty; called by WeSpeaker's MarginScheduler."""
        self.margin = margin
        self.layer.margin.take_options(self._loss())

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns zeros (B, C), which take no memory, and the mean loss over the batches of all ranks.

        WeSpeaker's loop computes an accuracy from the zeros, which is meaningless: no rank has all logits.
        """
        return embeddings.new_zeros(1, 1).expand(len(labels), self.num_classes), self.layer(embeddings, labels)
