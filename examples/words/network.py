"""A network from the letters of a word to an embedding: convolutions over the word, the maximum over its places.

Shapes: B words, W places, H width of the network, E embedding.
"""

import torch
from torch import nn
from torch.nn.functional import relu

from .lexemes import CODES

HIDDEN = 64
BLOCKS = 2
KERNEL = 3


class Block(nn.Module):
    """Two convolutions with batch norms around a shortcut (He et al. 2016), over the places of a word."""

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
    """Letters (B, W), integers as of `lexemes.encode`, to embeddings (B, E) float32.

    The places after a word have a letter of their own, so the convolutions see where it ends; the maximum over all
    places is of patterns of up to 9 letters, wherever they are.
    """

    def __init__(self, num_features: int, dropout: float = 0.0):
        super().__init__()
        self.letters = nn.Embedding(CODES, HIDDEN)
        self.blocks = nn.Sequential(*(Block(HIDDEN) for _ in range(BLOCKS)))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * HIDDEN, num_features)
        self.features = nn.BatchNorm1d(num_features, affine=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings."""
        letters = letters.long()
        maps = self.blocks(self.letters(letters).transpose(1, 2))
        inside = (letters > 0).unsqueeze(1).to(maps.dtype)
        mean = (maps * inside).sum(dim=2) / inside.sum(dim=2).clamp(min=1)
        pooled = torch.cat([(maps * inside).amax(dim=2), mean], dim=1)  # after a ReLU nothing is below 0
        return self.features(self.fc(self.dropout(pooled)))


def words(num_features: int, image_size: int = 0, dropout: float = 0.0) -> WordNetwork:
    """Builds the network; a word has no ``image_size``."""
    return WordNetwork(num_features, dropout)
