"""Makes a smaller file of a backbone, and accepts it if it verifies nearly as well as the original."""

import os

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

CALIBRATED, BATCH = 256, 32  # images that calibrate the ranges of the activations; images per batch
FEWEST = 100  # minimum number of pairs
# Minimum cosine between embeddings in float16 and float32; measured: 0.9999 if no weight is clipped. Int8 has no
# minimum; measured: 0.78 (mbf, untrained) to 0.997.
LOWEST_COSINE = 0.99


def make_smaller(content: bytes, kind: str, pairs: str, limit: float) -> tuple[bytes, str]:
    """Makes a smaller model from a float32 one, and verifies both on the same pairs.

    Args:
        content: content of the float32 model's file.
        kind: HALF or INT8, which is calibrated on the images of the pairs.
        pairs: path of the pairs.
        limit: maximum fall of accuracy and TAR.

    Returns:
        Content of the smaller file, and a text with the figures of both.

    Raises:
        OSError: The pairs cannot be read.
        ValueError: Accuracy or TAR fall by more than ``limit``, or embeddings in float16 differ; the message has all
            figures. Or the file cannot be made, the pairs are too few, or the original cannot tell them apart.
    """
    original = FaceModel(content, "the original")
    if original.batch is not None:
        raise ValueError(
            f"the original has a fixed batch size of {original.batch}: export it with a dynamic batch size"
        )
    original.check_independent()
    images, issame = read_pairs(pairs)
    if len(issame) < FEWEST:
        raise ValueError(
            f"{pairs} has {plural(len(issame), 'pair')}, too few to measure a drop in accuracy: give {FEWEST} or more"
        )
    before, distance, expected = verify_model(original, images, issame, pairs)
    chance = max(issame.mean(), 1 - issame.mean())
    if not correct_pairs(distance, issame, FOLDS).interval[0] > chance:
        raise ValueError(
            f"the original has accuracy {before.accuracy:.5f} on {pairs}, where chance is {chance:.5f}: give pairs "
            "that it can tell apart, otherwise a drop in accuracy cannot be measured"
        )
    if kind == HALF:
        smaller = to_half(content)
    else:
        # Spread over the whole file, because the first pairs may show only a few people.
        sample = [images[number] for number in np.unique(np.linspace(0, len(images) - 1, CALIBRATED).astype(int))]
        size, starts = original.input.image_size[0], range(0, len(sample), BATCH)
        batches = (decode_faces(sample[start : start + BATCH], size, pairs, start) for start in starts)
        smaller = to_int8(content, map(original.pixels, batches))
    smaller = set_metadata(smaller, **{PIXELS: original.pixel_range})
    model = check_form(smaller, original.input.normalizes)
    after, _, embeddings = verify_model(model, images, issame, pairs)
    cosine = 1 - float(np.max(squared_distances(embeddings, expected))) / 2
    figures = (
        f"accuracy {after.accuracy:.5f} instead of {before.accuracy:.5f}, {describe_tar(after, int(np.sum(~issame)))} "
        f"instead of {before.tar_at_far:.5f}, lowest cosine to the original {cosine:.5f}"
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
            f"{kind} cannot represent {clipped}"
        )
    name, threshold = os.path.splitext(os.path.basename(pairs))[0], repr(float(after.threshold))
    metadata = {"precision": kind, SET: name, THRESHOLD: threshold}
    return set_metadata(smaller, **metadata), figures
