"""A network from the letters of a word to an embedding: convolutions over the word, then maximum and mean.

Shapes: B words, W places, H width of the network, E embedding.
"""

import torch
from torch import nn
from torch.nn.functional import relu

from .lexemes import CODES

HIDDEN = 64
SMALL = 16  # width of a student, see docs/finetuning.md
BLOCKS = 2
KERNEL = 3


class Block(nn.Module):
    """A residual block (He et al. 2016) of two convolutions with batch norm over the letters of a word."""

    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, bias=False)
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, bias=False)
        self.bn2 = nn.BatchNorm1d(width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """(B, H, W) -> (B, H, W)."""
        return relu(data + self.bn2(self.conv2(relu(self.bn1(self.conv1(data))))))


class WordNetwork(nn.Module):
    """Maps letters (B, W), integers from `lexemes.encode`, to embeddings (B, E) float32.

    The padding after a word has an embedding of its own, so the convolutions see where the word ends. The maximum
    detects patterns of up to 9 letters at any position.
    """

    def __init__(self, num_features: int, dropout: float = 0.0, width: int = HIDDEN):
        super().__init__()
        self.letters = nn.Embedding(CODES, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(BLOCKS)))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * width, num_features)
        self.features = nn.BatchNorm1d(num_features, affine=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings."""
        letters = letters.long()
        maps = self.blocks(self.letters(letters).transpose(1, 2))
        inside = (letters > 0).unsqueeze(1).to(maps.dtype)
        mean = (maps * inside).sum(dim=2) / inside.sum(dim=2).clamp(min=1)
        pooled = torch.cat([(maps * inside).amax(dim=2), mean], dim=1)  # a ReLU's output is never below 0
        return self.features(self.fc(self.dropout(pooled)))


def words(num_features: int, image_size: int = 0, dropout: float = 0.0) -> WordNetwork:
    """Builds the network; ``image_size`` is not used."""
    return WordNetwork(num_features, dropout)


def small_words(num_features: int, image_size: int = 0, dropout: float = 0.0) -> WordNetwork:
    """Builds a network of a quarter of the width; ``image_size`` is not used."""
    return WordNetwork(num_features, dropout, SMALL)
