"""A small ResNet of WeSpeaker's form, from filter banks to an embedding that does not depend on padding.

Shapes: n utterances, T frames, BANDS, C channels, E embedding.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import relu

from .recordings import BANDS

EPSILON = 1e-7  # of the variance


class Block(nn.Module):
    """A residual block (He et al. 2016, figure 2) that masks the padding before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, maps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(n, inputs, b, t), masked -> (n, outputs, b / stride, t / stride); mask (n, 1, 1, t / stride)."""
        inner = relu(self.bn1(self.conv1(maps))) * mask
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(maps)) * mask


class SpeakerNetwork(nn.Module):
    """Maps ``frames`` (n, T, BANDS) and ``lengths`` (n,) to embeddings (n, E) float32.

    Each utterance's mean frame is subtracted, which removes the channel. All stages but the first halve the
    resolution. A linear layer maps mean and standard deviation over time to the embedding.

    Args:
        num_features: E.
        width: C of the first stage, doubled by each further stage; WeSpeaker's ResNet34 has 32.
        blocks: blocks of each stage; ResNet34 has 3, 4, 6, 3.
        stem: stride of the first convolution; ResNet34 has 1.
    """

    def __init__(self, num_features: int, width: int, blocks: Sequence[int], stem: int):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stem, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks, inputs, bands = nn.ModuleList(), width, -(-BANDS // stem)
        for stage, count in enumerate(blocks):
            outputs = width << stage
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(Block(inputs, outputs, stride))
                inputs, bands = outputs, -(-bands // stride)
        self.fc = nn.Linear(2 * inputs * bands, num_features)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the embeddings."""
        frames, lengths = inputs["frames"].transpose(1, 2).unsqueeze(1), inputs["lengths"]
        mask, lengths = shortened(frames, lengths, 1)
        mean = (frames * mask).sum(dim=3, keepdim=True) / mask.sum(dim=3, keepdim=True)
        maps = self.stem((frames - mean) * mask)
        mask, lengths = shortened(maps, lengths, self.stem.stride[1])
        maps = relu(self.bn(maps)) * mask
        for block in self.blocks:
            if block.stride > 1:
                mask, lengths = shortened(maps[..., ::2], lengths, 2)
            maps = block(maps, mask)
        count = mask.sum(dim=3)
        mean = maps.sum(dim=3) / count
        variance = ((maps - mean.unsqueeze(3)).square() * mask).sum(dim=3) / count
        statistics = torch.cat([mean, (variance + EPSILON).sqrt()], dim=1)
        return self.fc(statistics.flatten(1).float())


def shortened(maps: torch.Tensor, lengths: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the lengths (n,) after a convolution with a stride, and their mask (n, 1, 1, t) for maps (n, C, b, t)."""
    lengths = torch.div(lengths + (stride - 1), stride, rounding_mode="floor")
    steps = torch.arange(maps.shape[3], device=maps.device)
    return (steps < lengths[:, None]).to(maps.dtype)[:, None, None], lengths


def speakers(
    num_features: int, width: int = 8, blocks: Sequence[int] = (1, 1, 1, 1), stem: int = 4, dropout: float = 0.0
) -> SpeakerNetwork:
    """Builds the network, see SpeakerNetwork; ``dropout`` is not used."""
    return SpeakerNetwork(num_features, width, blocks, stem)
