"""Writes the set of characters with planted near-duplicates and characters of a test set, which cleaning should find.

HELD_OUT images of some characters are moved from the set to ``test.bin``, where they form the matching pairs. The other
pairs are of unseen characters. An altered copy of a fraction of the images is added to their class.

Shapes: N images, C classes.
"""

import json
from pathlib import Path

import cv2
import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.pairs_bin import read_pairs, write_pairs
from partial_fc.data.synthetic.identity import random_stream
from partial_fc.data.transforms import decode_any_size

from .dataset import PAIR_SETS, TRAINED
from .drawing import SIZE

PLANTED = 104  # random stream
HELD_OUT = 4
TEST = "test.bin"


def write_planted(source: Path, stage: Path, share: float, persons: int, seed: int) -> None:
    """Writes the set, test.bin, and planted.json with the classes in the test set and the keys of the copies.

    Args:
        source: folder of the set of characters.
        stage: folder to write to.
        share: fraction of the images that get a copy.
        persons: number of characters in the test set.
        seed: seed of the random choices.
    """
    records = FaceRecords(source / "train.rec")
    labels = records.labels(np.arange(records.num_images))
    random = random_stream(seed, PLANTED)
    in_test = random.random(records.num_identities).argsort(kind="stable")[:persons]
    has_copy = random.random(records.num_images) < share
    identities: list[list[bytes]] = []
    copies: list[int] = []
    test: list[bytes] = []
    key = 1
    for label in range(records.num_identities):
        positions = np.flatnonzero(labels == label)
        images = [records.read_image(position)[0] for position in positions.tolist()]
        if label in in_test:
            test += images[:HELD_OUT]
            positions, images = positions[HELD_OUT:], images[HELD_OUT:]
        added = [altered(image) for image, place in zip(images, positions) if has_copy[place]]
        identities.append(images + added)
        copies += range(key + len(images), key + len(images) + len(added))
        key += len(identities[-1])
    write_face_set(stage, identities, (SIZE, SIZE))
    unseen, issame = read_pairs(source / PAIR_SETS[TRAINED])
    others = [image for pair in np.flatnonzero(~issame)[: len(test) // 2] for image in unseen[2 * pair : 2 * pair + 2]]
    write_pairs(stage / TEST, test + others, [True] * (len(test) // 2) + [False] * (len(others) // 2))
    (stage / "planted.json").write_text(json.dumps({"classes": sorted(in_test.tolist()), "copies": copies}))


def altered(encoded: bytes) -> bytes:
    """Returns a rotated, coarser copy of more contrast, as WebP: changes that the duplicate limit was not tuned on."""
    image = cv2.cvtColor(decode_any_size(encoded), cv2.COLOR_RGB2BGR)
    turn = cv2.getRotationMatrix2D((SIZE / 2, SIZE / 2), 1.0, 1.0)  # degrees, scale
    turned = cv2.warpAffine(image, turn, (SIZE, SIZE), borderMode=cv2.BORDER_REPLICATE)
    coarse = cv2.resize(turned, None, fx=0.75, fy=0.75, interpolation=cv2.INTER_AREA)
    contrast = cv2.convertScaleAbs(cv2.resize(coarse, (SIZE, SIZE)), alpha=1.1, beta=-20)
    return cv2.imencode(".webp", contrast, [cv2.IMWRITE_WEBP_QUALITY, 60])[1].tobytes()
