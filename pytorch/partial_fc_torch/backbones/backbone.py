"""The base of every backbone: check and scale of the input, precision of body and head, epsilon of the batch norms.

Shapes: B images in a batch, E embedding size, S image size, C channels, (H, W) size of a feature map.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import nn

from partial_fc.checkpoint.model_format import TORCH

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
EPS = TORCH.eps  # also PyTorch's default


class Options(NamedTuple):
    """Arguments of every backbone, see get_model."""

    num_features: int
    dropout: float
    fp16: bool
    image_size: int


class Backbone(nn.Module):
    """A network that maps normalized images (B, 3, S, S) to embeddings (B, E), which do not have unit length.

    Images are RGB, ``(x / 255 - 0.5) / 0.5``. The body computes under the caller's autocast, if any. The head computes
    in the dtype of the images, float32: it sums over tens of thousands of elements, and the loss needs precise angles.

    A subclass defines ``body``, which maps images to features, such as a map (B, C, H, W), and ``head``, which maps
    features to embeddings.

    Attributes:
        pixel_scale: see partial_fc.checkpoint.ModelFormat. Weights of MXNet need 128. A state_dict does not
            contain it, so multiply its first convolution by ``input_gain``.
    """

    def __init__(self, options: Options):
        super().__init__()
        self.image_size, self.fp16 = options.image_size, options.fp16
        self.pixel_scale, self._eps = TORCH.pixel_scale, EPS

    @property
    def input_gain(self) -> float:
        """Factor of the normalized images before the first convolution."""
        return TORCH.pixel_scale / self.pixel_scale

    @property
    def eps(self) -> float:
        """Epsilon of the batch norms. Weights of MXNet need MXNet's epsilon, which a state_dict does not contain."""
        return self._eps

    @eps.setter
    def eps(self, eps: float) -> None:
        for module in self.modules():
            # A different epsilon is a constant of the architecture, and stays.
            if isinstance(module, BATCH_NORMS) and module.eps == self._eps:
                module.eps = eps
        self._eps = eps

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings (B, E), float32.

        Raises:
            ValueError: The images do not have the shape (B, 3, S, S).
        """
        # The sizes of a trace are symbolic.
        if not torch.jit.is_tracing() and images.shape[1:] != (3, self.image_size, self.image_size):
            raise ValueError(
                f"the images have the shape {tuple(images.shape)}, expected (B, 3, {self.image_size}, "
                f"{self.image_size}): build the network with the image_size of the images"
            )
        if self.input_gain != 1:
            images = images * self.input_gain
        with torch.autocast(images.device.type, torch.float16) if self.fp16 else nullcontext():
            maps = self.body(images)
        if maps.dtype != images.dtype:  # without this check, an exported graph would have a cast
            maps = maps.to(images.dtype)
        with torch.autocast(images.device.type, enabled=False):
            return self.head(maps)


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Returns a convolution without bias, because a batch norm follows; its output has ceil(H / stride) rows."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


def last_batch_norm(num_features: int) -> nn.BatchNorm1d:
    """Returns the batch norm of the embedding; gamma is frozen at 1, as a cosine loss does not depend on the scale."""
    norm = nn.BatchNorm1d(num_features)
    norm.weight.requires_grad = False
    return norm


def initialize_scaled(network: nn.Module) -> None:
    """Draws weights with variance 2 / fan-out as MXNet does (He et al. 2015, arXiv 1502.01852); biases are 0."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
