"""Evaluates a model on a protocol: template embeddings, 1:1 verification and 1:N identification.

A template is a set of media of one person, and a medium is a photo or a few frames of a video. Frames of a video are
nearly equal, so the embeddings of a medium's images are averaged; the media are summed, and the sum is normalized to
length 1. The template's embedding is therefore a weighted sum over its images, with weights of 1 / (images of the
medium), and image embeddings need not be kept: 95 MB for the 23,124 templates of IJB-C instead of 961 MB.

Shapes: N images, T templates, P pairs, B images of a batch, E embedding.
"""

import os
import time
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from partial_fc.data.prefetch import Prefetcher
from partial_fc.evaluation.roc import Roc
from partial_fc.export.model import FaceModel
from partial_fc.utils.distances import check_finite, normalized
from partial_fc.utils.progress import progress
from partial_fc_tools.sets.alignment import SIZE, align, read_rgb, similarities

from .identification import Identification, identify, mean
from .lists import ImageList
from .protocol import IjbSet

CHUNK = 512  # pairs: their embeddings (1 MB on each side) fit into the cache of a core


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
    seconds: dict[str, float]  # duration of each step


def evaluate(model: FaceModel, ijb: IjbSet, options: EmbeddingOptions) -> Results:
    """Runs 1:1, and 1:N if the protocol has its lists. Raises the errors of `template_embeddings`."""
    start = time.monotonic()
    templates = template_embeddings(model, ijb.folder, ijb.images, options)
    embedded = time.monotonic()
    with progress(len(ijb.pairs.left), "pair", "scoring pairs") as bar:
        scores = pair_scores(templates, ijb.pairs.left, ijb.pairs.right, bar)
    roc = Roc(scores, ijb.pairs.issame)
    verified = time.monotonic()
    searches: dict[str, Identification] = {}
    if ijb.search:
        probes = templates[ijb.search.probes.templates]
        with progress(len(probes) * len(ijb.search.galleries), "probe", "searching") as bar:
            for name, gallery in ijb.search.galleries.items():
                rows = {subject: row for row, subject in enumerate(gallery.subjects.tolist())}
                mates = np.array([rows.get(subject, -1) for subject in ijb.search.probes.subjects.tolist()], np.int64)
                searches[name] = identify(probes, templates[gallery.templates], mates, bar)
        searches["mean"] = mean(list(searches.values()))
    seconds = {
        "embedding": embedded - start,
        "verification": verified - embedded,
        "identification": time.monotonic() - verified,
    }
    return Results(scores, roc, searches, seconds)


def template_embeddings(model: FaceModel, folder: str, images: ImageList, options: EmbeddingOptions) -> np.ndarray:
    """Returns the template embeddings (T, E) float32, of length 1.

    insightface has two versions of this evaluation. Like its ONNX version, this adds the embeddings of a face and its
    mirror image unnormalized. The MXNet version normalizes both to length 1 first, which cancels ``norm_score``.

    Raises:
        OSError: An image cannot be read.
        ValueError: An image is damaged or its embedding is not finite (the message names it), or the model fails.
    """
    names, matrices, size = images.names, similarities(images.landmarks), options.batch_size

    def read(start: int) -> np.ndarray:
        faces = np.empty((len(names[start : start + size]), SIZE, SIZE, 3), np.uint8)
        for row in range(len(faces)):  # the reader is ahead, so this may be an empty batch past the end of the list
            faces[row] = align(read_rgb(os.path.join(folder, names[start + row]), folder), matrices[start + row])
        return faces

    sums = np.empty((0, 0))
    weights = media_weights(images.templates, images.media)
    if options.detector_score:
        weights = weights * images.detector_scores
    embed = model.embed_with_mirrored if options.flip else model.embed
    # While the model runs, threads decode and align the next batches, at most one more than there are threads:
    # OpenCV and onnxruntime release the GIL.
    reader = Prefetcher(read, lambda start: start + size, options.workers, options.workers + 1)
    with closing(reader), progress(len(names), "image", "embedding") as bar:
        for start in range(0, len(names), size):
            part = slice(start, start + size)
            faces = reader.get(start)
            rows = embed(faces, size).astype(np.float64)
            check_finite(rows, [os.path.join(folder, name) for name in names[part]])
            if not options.norm_score:
                rows = normalized(rows)
            if start == 0:
                sums = np.zeros((len(images.template_ids), rows.shape[1]))
            for template, row in zip(images.templates[part].tolist(), rows * weights[part, None]):
                sums[template] += row  # image by image, so that the result does not depend on the batch size
            bar.update(len(faces))
    return normalized(sums).astype(np.float32)


def media_weights(templates: np.ndarray, media: np.ndarray) -> np.ndarray:
    """Returns (N,) float64: 1 / (number of images with the same template and medium).

    As in insightface, media ids count within a template only: two templates may contain the same video.
    """
    keys = templates.astype(np.int64) << 32 | media
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    weights: np.ndarray = 1 / counts[inverse.reshape(-1)]
    return weights


def pair_scores(templates: np.ndarray, left: np.ndarray, right: np.ndarray, bar: Any) -> np.ndarray:
    """Returns (P,) float32: the cosines of the rows ``left`` and ``right`` (P,) of templates (T, E) of length 1.

    ``bar`` is a progress bar, updated by the number of finished pairs.
    """
    scores = np.empty(len(left), np.float32)
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        np.einsum("pe,pe->p", templates[left[part]], templates[right[part]], out=scores[part])
        bar.update(len(left[part]))
    return scores
