"""Backbones as torch.nn.Module."""
