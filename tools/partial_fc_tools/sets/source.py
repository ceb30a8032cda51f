"""The face set that a command reads: its path, image size and identities."""

import os
from collections.abc import Iterator
from itertools import chain, groupby

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.image_set import ImageSet
from partial_fc.data.sources.forms import FOLDER, form_of
from partial_fc.data.transforms import decode_any_size
from partial_fc.utils.decoder_messages import DecoderMessages

SIZE_SAMPLES = 16  # images to read for the image size, without a property file


def rec_path_of(path: str) -> str:
    """Returns the train.rec of a SET argument, a folder or a file. Raises FileNotFoundError if it is missing."""
    rec_path = os.path.join(path, "train.rec") if os.path.isdir(path) else path
    if not os.path.isfile(rec_path):
        if form_of(path) == FOLDER:
            raise FileNotFoundError(
                f"{rec_path} does not exist: if {path} has a folder of images for each identity, pack it first: "
                f"partial-fc sets pack {path} OUT"
            )
        raise FileNotFoundError(f"{rec_path} does not exist: expected the folder of a face set, or its train.rec")
    return rec_path


def open_set(path: str) -> FaceRecords:
    """Opens the set at `path`. Raises OSError, or ValueError that advises to check the set."""
    rec_path = rec_path_of(path)
    try:
        return FaceRecords(rec_path)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{error.args[0]} (partial-fc sets check {path} lists all problems)") from None


def image_size_of(records: FaceRecords) -> tuple:
    """Returns (H, W) of the set's images, from `property` or the first image that can be decoded."""
    if records.image_size is not None:
        return tuple(records.image_size)
    for position in range(min(SIZE_SAMPLES, records.num_images)):
        size = decoded_size(records.read_image(position)[0])
        if size is not None:
            return size
    raise ValueError(f"{records.rec_path}: no property file, and the first images cannot be decoded: check the set")


def decoded_size(encoded: bytes) -> tuple | None:
    """Returns (H, W) of an encoded image, None if it cannot be decoded."""
    try:
        with DecoderMessages():  # hides warnings of the C libraries, which do not name the image
            return decode_any_size(encoded).shape[:2]
    except ValueError:
        return None


def by_identity(records: ImageSet) -> Iterator[tuple[int, Iterator[int]]]:
    """Yields (label, positions) for each identity that has images, in the order of labels."""
    starts, labels = records.runs.starts, records.runs.labels
    ends = starts + records.runs.lengths()
    order = np.argsort(labels, kind="stable")  # im2rec may shuffle images
    for label, runs in groupby(order, key=labels.__getitem__):
        yield int(label), chain.from_iterable(range(starts[run], ends[run]) for run in runs)
