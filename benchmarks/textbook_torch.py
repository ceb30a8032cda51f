"""The classification layer in PyTorch as in textbooks, the baseline of benchmarks/layer.py and gpu.py.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, L classes of this rank, S of them in a step.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import linear, normalize, one_hot

from partial_fc.layer.sharding import num_sampled, shard_of


class TextbookPartialFC(torch.nn.Module):
    """CosFace over sampled classes, with normalized copies, a one-hot matrix, autograd and a dense gradient.

    Collectives of a step: all-gathers of features (B, E) and labels (B,), all-reduces of row maxima, row sums and
    targets (G, 1), and of the feature gradient (G, E). The optimizer updates all L rows.
    """

    def __init__(self, scale: float, margin: float, embedding_size: int, num_classes: int, sample_rate: float, device):
        super().__init__()
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        shard = shard_of(num_classes, rank, size)
        self.scale, self.margin, self.size = scale, margin, size
        self.class_start, self.num_sample = shard.start, num_sampled(shard.size, sample_rate)
        self.weight = torch.nn.Parameter(torch.randn(shard.size, embedding_size, device=device) * 0.01)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total_features = _AllGather.apply(features) if self.size > 1 else features
        weight, columns = self.select(labels)
        cosine = linear(normalize(total_features), normalize(weight))
        targets = one_hot(columns.clamp(min=0), len(weight)) * (columns >= 0)[:, None]
        return _CrossEntropy.apply(self.scale * (cosine - self.margin * targets), targets)

    def select(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weights (S, E) of a step, and the column of each row of the global batch among them, or -1."""
        columns = (_gathered(labels) if self.size > 1 else labels) - self.class_start
        columns[(columns < 0) | (columns >= len(self.weight))] = -1
        weight = self.weight
        if self.num_sample < len(weight):
            index = self.sample(columns)
            weight = weight[index]
            columns = torch.where(columns < 0, -1, torch.searchsorted(index, columns))
        return weight, columns

    def sample(self, columns: torch.Tensor) -> torch.Tensor:
        """Returns the positives of the batch and random negatives: local indices (S,), sorted."""
        positive = columns[columns >= 0].unique()
        priority = torch.rand(len(self.weight), device=columns.device)
        priority[positive] = 2.0
        return priority.topk(max(self.num_sample, len(positive)))[1].sort()[0]


class _AllGather(torch.autograd.Function):
    """Gathers the features of all ranks. The gradient is the sum over the ranks times R, because DDP averages it."""

    @staticmethod
    def forward(ctx, features):
        ctx.rows = len(features)
        return _gathered(features)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows] * dist.get_world_size()


class _CrossEntropy(torch.autograd.Function):
    """Returns the mean cross entropy over the columns of all ranks."""

    @staticmethod
    def forward(ctx, logits, targets):
        exponential = torch.exp(logits - _reduced(logits.amax(dim=1, keepdim=True), dist.ReduceOp.MAX))
        probability = exponential / _reduced(exponential.sum(dim=1, keepdim=True), dist.ReduceOp.SUM)
        target = _reduced((probability * targets).sum(dim=1), dist.ReduceOp.SUM)
        ctx.save_for_backward(probability, targets)
        return -(target + 1e-30).log().mean()

    @staticmethod
    def backward(ctx, d_loss):
        probability, targets = ctx.saved_tensors
        return (probability - targets) * (d_loss / len(targets)), None


def _gathered(rows: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def _reduced(values: torch.Tensor, op) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(values, op)
    return values
