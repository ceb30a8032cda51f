"""The loss of a step in PyTorch's autograd."""

import torch
from torch.autograd.function import once_differentiable


class MeanLoss(torch.autograd.Function):
    """The mean loss of a step, with its gradients by the features and, for PartialFC_V2, by the centers."""

    @staticmethod
    def forward(ctx, features, weight, labels, layer):
        """Computes the forward pass of the layer."""
        ctx.layer, ctx.step = layer, layer._forward_step(features, labels)
        ctx.save_for_backward(weight)
        return features.new_full((), ctx.step.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss):
        """Computes the backward pass of the layer."""
        _ = ctx.saved_tensors  # reading it raises an error if the centers have changed since the forward pass
        return *ctx.layer._backward_step(ctx.step, d_loss), None, None
