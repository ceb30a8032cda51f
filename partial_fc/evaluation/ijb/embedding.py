"""Computes embeddings of a protocol's images and pools them into templates, batch by batch.

Threads read, decode and align the next batches while the model runs (OpenCV and onnxruntime release the GIL). The
number of prefetched batches is bounded, and so is the memory: 5 MB per batch of 128 faces.

Shapes: N images, T templates, B images of a batch, E embedding.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

import numpy as np

from partial_fc.data.prefetch import Prefetcher
from partial_fc.inference.model import FaceModel
from partial_fc.utils.progress import progress

from .alignment import SIZE, align, read_rgb, similarities
from .lists import ImageList
from .templates import TemplateSums, media_shares


class EmbeddingOptions(NamedTuple):
    """Options of the template embeddings.

    Attributes:
        flip: Add the embedding of the mirror image.
        detector_score: Weight images by their detector score.
        norm_score: Weight images by the length of their embeddings.
        batch_size: Faces per batch.
        workers: Reader threads.
    """

    flip: bool = True
    detector_score: bool = True
    norm_score: bool = True
    batch_size: int = 128
    workers: int = 1


def template_embeddings(model: FaceModel, folder: str, images: ImageList, options: EmbeddingOptions) -> np.ndarray:
    """Returns the template embeddings (T, E) float32, of length 1.

    insightface has two versions of this, which differ. This is the ONNX one: embeddings of a face and its mirror image
    are added unnormalized. The MXNet one normalizes each to length 1 first, which cancels ``norm_score``.

    Raises:
        OSError: An image cannot be read.
        ValueError: An image is damaged (the message names it), or the model fails.
    """
    sums = TemplateSums(len(images.template_ids), options.norm_score)
    weights = media_shares(images.templates, images.media)
    if options.detector_score:
        weights = weights * images.detector_scores
    embed = model.embed_with_mirrored if options.flip else model.embed
    reader = aligned_faces(folder, images, options.batch_size, options.workers)
    with closing(reader), progress(len(images.names), "image", "embedding") as bar:
        for start in range(0, len(images.names), options.batch_size):
            part = slice(start, start + options.batch_size)
            faces = reader.get(start)
            sums.add(embed(faces, options.batch_size), images.templates[part], weights[part])
            bar.update(len(faces))
    return sums.normalized()


def aligned_faces(folder: str, images: ImageList, batch_size: int, workers: int) -> Prefetcher[int, np.ndarray]:
    """Returns a reader in `workers` threads: first image of a batch -> its aligned faces (B, 112, 112, 3) uint8 RGB.

    Its ``get`` raises OSError or ValueError for an image that cannot be read or is damaged; the message names it.
    """
    names, matrices = images.names, similarities(images.landmarks)

    def read(start: int) -> np.ndarray:
        faces = np.empty((len(names[start : start + batch_size]), SIZE, SIZE, 3), np.uint8)
        for row in range(len(faces)):  # the batch past the end of the list is empty
            faces[row] = align(read_rgb(os.path.join(folder, names[start + row])), matrices[start + row])
        return faces

    return Prefetcher(read, lambda start: start + batch_size, workers, workers + 1)
