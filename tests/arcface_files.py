"""Files as arcface_torch's train_v2.py saves them, from a training by PyTorch alone.

Shapes: C classes, L classes of a rank, E embedding.
"""

import torch
from torch.nn.functional import cross_entropy, linear, normalize
from torch.optim.lr_scheduler import PolynomialLR

from partial_fc.layer.sharding import shard_of


class Textbook:
    """A backbone, centers (C, E) and one optimizer of both, in one process.

    Args:
        backbone: from normalized images to embeddings.
        classes, width: C and E.
        optimizer: groups -> optimizer.
    """

    scale, margin = 8.0, 0.4  # CosFace

    def __init__(self, backbone, classes, width, optimizer):
        self.backbone = backbone
        self.weight = torch.nn.Parameter(torch.randn(classes, width, generator=torch.Generator().manual_seed(3)) / 100)
        self.optimizer = optimizer([{"params": list(backbone.parameters())}, {"params": [self.weight]}])
        self.scheduler = PolynomialLR(self.optimizer, total_iters=10**6)
        self.steps = 0

    def step(self, images, labels):
        """Trains on normalized images."""
        cosines = linear(normalize(self.backbone(images)), normalize(self.weight))
        target = torch.nn.functional.one_hot(labels, len(self.weight))
        loss = cross_entropy(self.scale * (cosines - self.margin * target), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.steps += 1
        return loss.item()

    def save(self, folder, ranks, epoch=2, sampled=0):
        """Writes ``checkpoint_gpu_<rank>.pt`` of so many ranks.

        Args:
            sampled: rows of centers that the optimizer has states of, without saying which; 0 for all.
        """
        for rank in range(ranks):
            torch.save(self.content(rank, ranks, epoch, sampled), f"{folder}/checkpoint_gpu_{rank}.pt")

    def content(self, rank, ranks, epoch=2, sampled=0):
        """Of the file of a rank, with running statistics of its own."""
        shard = shard_of(len(self.weight), rank, ranks)
        rows = slice(shard.start, shard.stop)
        backbone = {name: value.clone() for name, value in self.backbone.state_dict().items()}
        for name, value in backbone.items():
            if name.endswith("running_mean"):
                value += rank - (ranks - 1) / 2
        state = self.optimizer.state_dict()
        of_centers = {
            key: value[:sampled].clone() if sampled and value.ndim else value[rows].clone() if value.ndim else value
            for key, value in state["state"][max(state["state"])].items()
        }
        states = {**state["state"], max(state["state"]): of_centers}
        return {
            "epoch": epoch,
            "global_step": self.steps,
            "state_dict_backbone": backbone,
            "state_dict_softmax_fc": {"weight": self.weight.detach()[rows].clone()},
            "state_optimizer": {**state, "state": states},
            "state_lr_scheduler": self.scheduler.state_dict(),
        }
