"""Accepts a smaller file of a backbone if it verifies nearly as well as the original.

Shapes: n images of a batch, H, W image size.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc.evaluation.verification import FOLDS, describe_tar
from partial_fc.export.model import FaceModel
from partial_fc.export.normalization import PIXELS
from partial_fc.export.parity import check_form
from partial_fc.utils.distances import squared_distances
from partial_fc.utils.text import plural, some
from partial_fc_tools.inference.compare import SET, THRESHOLD
from partial_fc_tools.verify.command import verify_model
from partial_fc_tools.verify.pair_rates import correct_pairs

from .smaller import HALF, clipped_by_half, set_metadata, to_half, to_int8

CALIBRATED, BATCH = 256, 32  # images that show the ranges of the activations, and how many at a time
FEWEST = 100  # pairs
# To the original, in float16, which has 0.9999 if nothing is clipped. Int8 had 0.78 (mbf, untrained) to 0.997.
LOWEST_COSINE = 0.99


class Smaller(NamedTuple):
    """A smaller file, and in words what it and the original reach on the same pairs."""

    content: bytes
    figures: str


def make_smaller(content: bytes, kind: str, pairs: str, limit: float) -> Smaller:
    """Makes a smaller model of a kind, HALF or INT8, from the content of a float32 one, and verifies both.

    INT8 is calibrated with images of the pairs, without their labels. ``limit`` is the most that accuracy and TAR may
    fall.

    Raises:
        OSError: The pairs cannot be read.
        ValueError: Accuracy or TAR fall by more, or embeddings of float16 differ; the message has all figures. Or the
            file cannot be made, or the pairs are too few to show a fall or too hard for the original.
    """
    original = FaceModel(content, "the original")
    if original.batch is not None:
        raise ValueError(f"the original takes batches of {original.batch} alone: export it with a dynamic batch size")
    original.check_independent()
    images, issame = read_pairs(pairs)
    if len(issame) < FEWEST:
        raise ValueError(f"{pairs} has {plural(len(issame), 'pair')}, too few to show a fall: give {FEWEST} or more")
    before, distance, expected = verify_model(original, images, issame, pairs)
    chance = max(issame.mean(), 1 - issame.mean())
    if not correct_pairs(distance, issame, FOLDS).interval[0] > chance:
        raise ValueError(
            f"the original has accuracy {before.accuracy:.5f} on {pairs}, where chance is {chance:.5f}: give pairs "
            "that it can tell apart, else no fall could be seen"
        )
    different = int(np.sum(~issame))
    if kind == HALF:
        smaller = to_half(content)
    else:
        # Over the whole file, as its first pairs may be of few people.
        chosen = np.unique(np.linspace(0, len(images) - 1, CALIBRATED).astype(int))
        smaller = to_int8(content, _batches([images[number] for number in chosen], original, pairs))
    smaller = set_metadata(smaller, **{PIXELS: original.pixel_range})
    model = check_form(smaller, original.input.normalizes)
    after, _, found = verify_model(model, images, issame, pairs)
    cosine = 1 - float(np.max(squared_distances(found, expected))) / 2
    figures = (
        f"accuracy {after.accuracy:.5f} instead of {before.accuracy:.5f}, {describe_tar(after, different)} instead of "
        f"{before.tar_at_far:.5f}, lowest cosine to the original {cosine:.5f}"
    )
    fall = max(before.accuracy - after.accuracy, before.tar_at_far - after.tar_at_far)
    if not fall <= limit:
        raise ValueError(
            f"in {kind} the model has {figures} on {pairs}: a fall of {fall:.5f}, and --limit is {limit:g}. Keep the "
            "original, or set a higher limit"
        )
    if kind == HALF and cosine < LOWEST_COSINE:
        clipped = some(clipped_by_half(content)) or "activations"
        raise ValueError(
            f"in {kind} the model has {figures} on {pairs}: a cosine below {LOWEST_COSINE}. Keep the original: "
            f"what leaves the range of {kind} is in {clipped}"
        )
    name, threshold = os.path.splitext(os.path.basename(pairs))[0], repr(float(after.threshold))
    metadata = {"precision": kind, SET: name, THRESHOLD: threshold}
    return Smaller(set_metadata(smaller, **metadata), figures)


def _batches(images: list[bytes], model: FaceModel, name: str) -> Iterator[np.ndarray]:
    """Yields what the model takes, (n, 3, H, W) float32."""
    for start in range(0, len(images), BATCH):
        faces = decode_faces(images[start : start + BATCH], model.input.image_size[0], name, start)
        yield model.pixels(faces)
