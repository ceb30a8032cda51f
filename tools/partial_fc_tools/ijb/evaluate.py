"""Evaluates a model on a protocol: embeddings of the templates, 1:1 verification and 1:N identification.

A template is a set of media of one person, each a photo or some frames of a video. Frames of a video are nearly equal,
so the images of a media are averaged; the media are summed, and the sum is normalized to length 1. Each image therefore
has the weight 1 / (images of its media), a template is a weighted sum over images, and image embeddings need not be
kept: 95 MB for the 23,124 templates of IJB-C instead of 961 MB.

Threads read, decode and align the next batches while the model runs (OpenCV and onnxruntime release the GIL). The
number of prefetched batches is bounded, and so is the memory: 5 MB per batch of 128 faces.

Shapes: N images, T templates, P pairs, B images of a batch, E embedding.
"""

import os
import time
from contextlib import closing
from typing import NamedTuple

import numpy as np

from partial_fc.data.prefetch import Prefetcher
from partial_fc.evaluation.roc import Roc
from partial_fc.export.model import FaceModel
from partial_fc.utils.distances import check_finite, normalized
from partial_fc.utils.progress import progress
from partial_fc_tools.sets.alignment import SIZE, align, read_rgb, similarities

from .identification import Identification, identify, mean
from .lists import ImageList
from .protocol import IjbSet, Search
from .verification import pair_scores


class EmbeddingOptions(NamedTuple):
    """Options of the template embeddings."""

    flip: bool = True  # add the embedding of the mirror image
    detector_score: bool = True  # weight images by their detector score
    norm_score: bool = True  # weight images by the length of their embeddings
    batch_size: int = 128  # faces per batch
    workers: int = 1  # reader threads


class Results(NamedTuple):
    """Results of an evaluation."""

    scores: np.ndarray  # (P,) float32 in the order of the pairs
    roc: Roc  # their ROC curve
    searches: dict[str, Identification]  # 1:N results by gallery and "mean"; empty without 1:N lists
    seconds: dict[str, float]  # duration by part of the work


def evaluate(model: FaceModel, ijb: IjbSet, options: EmbeddingOptions) -> Results:
    """Runs 1:1, and 1:N if the protocol has its lists. Raises the errors of `template_embeddings`."""
    start = time.monotonic()
    templates = template_embeddings(model, ijb.folder, ijb.images, options)
    embedded = time.monotonic()
    with progress(len(ijb.pairs.left), "pair", "scoring pairs") as bar:
        scores = pair_scores(templates, ijb.pairs.left, ijb.pairs.right, bar)
    roc = Roc(scores, ijb.pairs.issame)
    verified = time.monotonic()
    searches = _search_galleries(templates, ijb.search) if ijb.search else {}
    seconds = {
        "embedding": embedded - start,
        "verification": verified - embedded,
        "identification": time.monotonic() - verified,
    }
    return Results(scores, roc, searches, seconds)


def _search_galleries(templates: np.ndarray, search: Search) -> dict[str, Identification]:
    probes = templates[search.probes.templates]
    results = {}
    with progress(len(probes) * len(search.galleries), "probe", "searching") as bar:
        for name, gallery in search.galleries.items():
            rows = {subject: row for row, subject in enumerate(gallery.subjects.tolist())}
            mates = np.array([rows.get(subject, -1) for subject in search.probes.subjects.tolist()], np.int64)
            results[name] = identify(probes, templates[gallery.templates], mates, bar)
    return {**results, "mean": mean(list(results.values()))}


def template_embeddings(model: FaceModel, folder: str, images: ImageList, options: EmbeddingOptions) -> np.ndarray:
    """Returns the template embeddings (T, E) float32, of length 1.

    insightface has two versions of this, which differ. This is the ONNX one: embeddings of a face and its mirror image
    are added unnormalized. The MXNet one normalizes each to length 1 first, which cancels ``norm_score``.

    Raises:
        OSError: An image cannot be read.
        ValueError: An image is damaged or its embedding not finite (the message names it), or the model fails.
    """
    sums = np.empty((0, 0))
    weights = media_shares(images.templates, images.media)
    if options.detector_score:
        weights = weights * images.detector_scores
    embed = model.embed_with_mirrored if options.flip else model.embed
    reader = aligned_faces(folder, images, options.batch_size, options.workers)
    with closing(reader), progress(len(images.names), "image", "embedding") as bar:
        for start in range(0, len(images.names), options.batch_size):
            part = slice(start, start + options.batch_size)
            faces = reader.get(start)
            rows = embed(faces, options.batch_size).astype(np.float64)
            check_finite(rows, [os.path.join(folder, name) for name in images.names[part]])
            if not options.norm_score:
                rows = normalized(rows)
            if start == 0:
                sums = np.zeros((len(images.template_ids), rows.shape[1]))
            for template, row in zip(images.templates[part].tolist(), rows * weights[part, None]):
                sums[template] += row  # image by image, so that the result does not depend on the batches
            bar.update(len(faces))
    return normalized(sums).astype(np.float32)


def aligned_faces(folder: str, images: ImageList, batch_size: int, workers: int) -> Prefetcher[int, np.ndarray]:
    """Returns a reader in `workers` threads: first image of a batch -> its aligned faces (B, 112, 112, 3) uint8 RGB.

    Its ``get`` raises OSError or ValueError for an image that cannot be read or is damaged; the message names it.
    """
    names, matrices = images.names, similarities(images.landmarks)

    def read(start: int) -> np.ndarray:
        faces = np.empty((len(names[start : start + batch_size]), SIZE, SIZE, 3), np.uint8)
        for row in range(len(faces)):  # the batch past the end of the list is empty
            faces[row] = align(read_rgb(os.path.join(folder, names[start + row]), folder), matrices[start + row])
        return faces

    return Prefetcher(read, lambda start: start + batch_size, workers, workers + 1)


def media_shares(templates: np.ndarray, media: np.ndarray) -> np.ndarray:
    """Returns (N,) float64: 1 / (number of images with the same template and media).

    Media ids are compared within a template only, as in insightface: two templates may contain the same video.
    """
    keys = templates.astype(np.int64) << 32 | media
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shares: np.ndarray = 1 / counts[inverse.reshape(-1)]
    return shares
