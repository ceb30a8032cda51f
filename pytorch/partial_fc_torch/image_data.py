"""Batches of tensors: face sets, and dummy batches without reading.

Shapes: B local batch, R ranks, H, W image size, C classes.
"""

from typing import NamedTuple

import numpy as np
import torch

from partial_fc.data.batch_loader import FaceBatches
from partial_fc.data.cursor import Position
from partial_fc.data.training_data import DataLoader, DummyData


class ImageBatch(NamedTuple):
    """A batch on the host.

    Attributes:
        images: (B, 3, H, W) uint8 RGB; in pinned memory if it goes to a GPU.
        labels: (B,) int64.
    """

    images: torch.Tensor
    labels: np.ndarray


def face_data(faces: FaceBatches, threads: int, pinned: bool) -> DataLoader[ImageBatch]:
    """Returns the share of one rank in a face set as ImageBatches, decoded by so many threads, see DataLoader.

    With ``pinned`` the images are put into pinned memory, from where a GPU copies them asynchronously.
    """

    def load(position: Position) -> ImageBatch:
        images, labels = faces.batch(*position)
        tensor = torch.from_numpy(images)
        return ImageBatch(tensor.pin_memory() if pinned else tensor, labels)

    return DataLoader(faces, threads, load)


def dummy_images(
    shape: tuple[int, int, int, int], batches: int, num_classes: int, seed: int, rank: int, pinned: bool
) -> DummyData[ImageBatch]:
    """Returns dummy batches, see DummyData; ``pinned`` as of face_data."""
    data = DummyData(shape, batches, num_classes, seed, rank, lambda labels: ImageBatch(images, labels))
    images = torch.from_numpy(data.pixels)
    images = images.pin_memory() if pinned else images
    return data
