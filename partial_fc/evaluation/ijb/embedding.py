"""Embeddings of a protocol's images, pooled into templates as they come.

Threads read, decode and align the next batches while the model is busy with one (OpenCV and onnxruntime let go of the
interpreter's lock); how far ahead they get is bounded, and so is the memory: 5 MB a batch of 128 faces.

Shapes: N images, T templates, B images of a batch, E embedding.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple, Protocol

import numpy as np

from partial_fc.data.prefetch import Prefetcher
from partial_fc.utils.progress import progress

from .alignment import SIZE, align, read_rgb, similarities
from .image_list import ImageList
from .templates import TemplateSums, media_shares


class Model(Protocol):
    """What makes embeddings: partial_fc.inference.model.FaceModel, or anything with these."""

    def embed(self, faces: np.ndarray, batch_size: int) -> np.ndarray:
        """(B, E) float32 of faces (B, H, W, 3) uint8 RGB."""

    def embed_with_mirrored(self, faces: np.ndarray, batch_size: int) -> np.ndarray:
        """(B, E) float32: the same, plus the embeddings of the mirrored faces."""


class How(NamedTuple):
    """`flip`: the embedding of the mirrored face is added; `detector_score`: images count by it; `norm_score`: and by
    the length of their embeddings. `workers`: reading threads."""

    flip: bool = True
    detector_score: bool = True
    norm_score: bool = True
    batch_size: int = 128
    workers: int = 1


def check_size(image_size: tuple[int, int], name: str) -> None:
    """Raise ValueError for a model that takes other faces than those that alignment makes."""
    if tuple(image_size) != (SIZE, SIZE):
        height, width = image_size
        raise ValueError(f"{name} takes faces of {height}x{width} pixels: IJB's are aligned to {SIZE}x{SIZE}")


def template_embeddings(model: Model, folder: str, images: ImageList, how: How) -> np.ndarray:
    """(T, E) float32 of length 1: the templates of `images`, which lie in `folder`.

    Where insightface's two versions of this differ it is the ONNX one's: embeddings of a face and its mirror image are
    added as the model gives them. Its MXNet script brings each to length 1 first, which undoes `norm_score`.

    Raises OSError and ValueError naming the image that cannot be read, and what the model raises.
    """
    sums = TemplateSums(len(images.template_ids), how.norm_score)
    weights = media_shares(images.templates, images.media)
    if how.detector_score:
        weights = weights * images.detector_scores
    embed = model.embed_with_mirrored if how.flip else model.embed
    reader = AlignedFaces(folder, images, how.batch_size, how.workers)
    with closing(reader), progress(len(images.names), "image", "embedding") as bar:
        for start in range(0, len(images.names), how.batch_size):
            part = slice(start, start + how.batch_size)
            faces = reader.get(start)
            sums.add(embed(faces, how.batch_size), images.templates[part], weights[part])
            bar.update(len(faces))
    return sums.normalized()


class AlignedFaces:
    """The aligned faces of a list, a batch at a time, read ahead by `workers` threads."""

    def __init__(self, folder: str, images: ImageList, batch_size: int, workers: int):
        names, matrices = images.names, similarities(images.landmarks)

        def read(start: int) -> np.ndarray:
            faces = np.empty((len(names[start : start + batch_size]), SIZE, SIZE, 3), np.uint8)
            for row in range(len(faces)):  # none past the end of the list
                faces[row] = align(read_rgb(os.path.join(folder, names[start + row])), matrices[start + row])
            return faces

        self._batches = Prefetcher(read, lambda start: start + batch_size, workers, workers + 1)

    def get(self, start: int) -> np.ndarray:
        """(B, 112, 112, 3) uint8 RGB of the images from number `start`. Raises OSError, ValueError naming an image."""
        return self._batches.get(start)

    def close(self) -> None:
        """End the threads."""
        self._batches.close()
