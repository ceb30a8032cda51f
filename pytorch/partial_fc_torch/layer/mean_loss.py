"""The loss of a step in PyTorch's autograd."""

import torch
from torch.autograd.function import once_differentiable


class MeanLoss(torch.autograd.Function):
    """The mean loss of a step, and its gradients by the features and, if the layer computes it, by the centers."""

    @staticmethod
    def forward(ctx, features, weight, labels, layer):
        """Does the first pass."""
        ctx.layer, ctx.step = layer, layer._forward_step(features, labels)
        ctx.save_for_backward(weight)
        return features.new_full((), ctx.step.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss):
        """Does the second pass."""
        _ = ctx.saved_tensors  # raises an error if the centers have changed since the forward pass
        return *ctx.layer._backward_step(ctx.step, d_loss), None, None
