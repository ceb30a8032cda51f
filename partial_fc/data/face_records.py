"""A face set in insightface's layout: `train.rec`, `train.idx` and `property` ("C,H,W") in one folder.

    key 0               labels [N+1, N+1+C): the range of keys of the identity records
    keys 1 .. N         images, label = identity
    keys N+1 .. N+C     one record per identity, labels [start, end): the range of keys of its images

All labels are float32, which rounds 16,777,217 to 16,777,216. This writer therefore also stores every range as integers
in the header fields id and id2, which the original readers ignore; an image's id is its key. The reader takes class
labels from the identity ranges: from the integers if they are stored, or from floats below 2^24. For larger floats
(Glint360K has 17,091,657 images), it finds the key at which the labels of the images change, among the keys that round
to the float. It refuses an image whose header has another label.

Shapes: N images, C identities.
"""

import os
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.regular_files import read_regular

from .identity_ranges import (
    FLOAT32_EXACT,
    check_limits,
    check_ranges,
    exact_ranges,
    holds_integers,
    identity_keys,
    recover_ranges,
    runs_of_ranges,
)
from .image_set import ImageSet
from .label_runs import LabelRuns
from .recordio.format import RecordHeader, RecordWriter, first_labels, holds_range, pack, unpack
from .recordio.reader import RecordReader


def write_face_set(
    root: str | os.PathLike, identities: Iterable[Iterable[bytes]], image_shape: tuple = (112, 112)
) -> tuple:
    """Writes a face set: root/train.rec, train.idx and property.

    Args:
        root: folder of the set; created if it is missing.
        identities: encoded images by identity; consumed in order and not kept in memory.
        image_shape: (H, W).

    Returns:
        (N, C).

    Raises:
        ValueError: an identity has no images.
    """
    os.makedirs(root, exist_ok=True)
    ends = [1]
    with RecordWriter(os.path.join(root, "train.rec"), os.path.join(root, "train.idx")) as writer:
        for label, images in enumerate(identities):
            key = ends[-1]
            for image in images:
                writer.write(key, pack(RecordHeader(0, float(label), key, 0), image))
                key += 1
            if key == ends[-1]:
                raise ValueError(f"{root}: identity {label} has no images; leave it out")
            ends.append(key)
        first = ends[-1]
        for label, (start, end) in enumerate(zip(ends[:-1], ends[1:])):
            writer.write(first + label, pack_range(start, end))
        writer.write(0, pack_range(first, first + len(ends) - 1))
    size = f"{len(ends) - 1},{image_shape[0]},{image_shape[1]}\n"
    replace_file(os.path.join(root, "property"), [size.encode()])
    return ends[-1] - 1, len(ends) - 1


def pack_range(start: int, end: int) -> bytes:
    """Returns the record of a range [start, end): two float32 labels, and integers in id and id2."""
    return pack(RecordHeader(2, np.array([start, end], np.float32), start, end), b"")


MAX_PROPERTY = 1000  # bytes


def index_path(rec_path: str | os.PathLike) -> str:
    """Returns the path of the .idx of a .rec. Raises ValueError for other file names."""
    stem, extension = os.path.splitext(os.fspath(rec_path))
    if extension != ".rec":
        raise ValueError(f"{rec_path} is not the name of a RecordIO file, expected the path of a train.rec")
    return stem + ".idx"


def read_property(rec_path: str | os.PathLike) -> tuple | None:
    """Reads (C, H, W) from a set's `property` file; None if there is none. Raises ValueError for invalid content."""
    path = os.path.join(os.path.dirname(os.fspath(rec_path)), "property")
    if not os.path.isfile(path):
        return None
    text = read_regular(path, MAX_PROPERTY).decode("utf-8", "replace").strip()
    try:
        classes, height, width = (int(number) for number in text.split(","))
        if min(classes, height, width) < 1:
            raise ValueError("a number is not positive")
    except ValueError:
        raise ValueError(f"{path} contains {text[:40]!r}, expected 'classes,height,width': fix or remove it") from None
    return classes, height, width


class FaceRecords(ImageSet):
    """The images of a face set by position 0 .. N-1, with exact labels. Thread-safe and fork-safe. See ImageSet.

    Opening reads the index, record 0 and the identity records, but no headers of images. A set without identity records
    (from MXNet's im2rec: record 0 is an image) is an exception: opening reads the headers of all images, which takes
    about 50 bytes of memory per image.

    Attributes, besides those of ImageSet:
        ranges: how the identity records store ranges: all as "integers", or some as "float32" only; "none" if there
            are no identity records.
        image_size: (H, W) from `property`, None without that file.

    Raises:
        OSError, ValueError: the set cannot be read; the message names the file and what to do.
    """

    advice = "write or download the set again (partial-fc sets check lists all bad images)"

    def __init__(self, rec_path: str | os.PathLike):
        self.rec_path = os.fspath(rec_path)
        idx_path = index_path(self.rec_path)
        prop = read_property(self.rec_path)
        self.image_size = None if prop is None else prop[1:]
        self._reader = RecordReader(self.rec_path, idx_path)
        self._index = self._reader.index
        try:
            runs, num_identities = self._open_layout()
        except (ValueError, KeyError):
            self.close()
            raise
        super().__init__(self.rec_path, runs, num_identities)

    def _open_layout(self) -> tuple[LabelRuns, int]:
        head = self._reader.read_heads(self._index.keys_at([0]))
        if self._index.keys_at(0) == 0 and holds_range(head)[0]:
            self._first_row = 1
            first, last = identity_keys(self._reader, head)
            heads = self._reader.read_heads(np.arange(first, last))
            if not holds_range(heads).all():
                key = first + int(holds_range(heads).argmin())
                raise ValueError(
                    f"{self.rec_path}: key {key} should be an identity record, but has no range of images; copy the "
                    ".rec and its .idx again"
                )
            self.ranges = "integers" if holds_integers(np.append(head, heads)).all() else "float32"
            check_limits(self._reader, first + np.arange(len(heads)), heads)
            ranges, exact = exact_ranges(heads)
            if not exact.all():
                ranges = recover_ranges(self._reader, heads, first)
            check_ranges(self._reader, ranges, (self._first_row, int(self._index.search(first))))
            return runs_of_ranges(ranges), last - first
        self._first_row, self.ranges = 0, "none"
        if holds_range(self._reader.read_heads(self._index.keys_at([len(self._index) - 1])))[0]:
            raise ValueError(
                f"{self.describe(0)} should be the range of the identity records, but is damaged or missing; copy the "
                ".rec and its .idx again"
            )
        keys = self._index.keys_at(np.arange(len(self._index)))
        labels = first_labels(self._reader.read_heads(keys))
        wrong = ~((labels >= 0) & (labels < FLOAT32_EXACT) & (labels == np.floor(labels)))
        if wrong.any():
            position = int(wrong.argmax())
            raise ValueError(
                f"{self.describe(position)} has label {labels[position]}, expected an integer below 2^24; "
                "sets with more classes need identity records, as write_face_set writes them"
            )
        runs = LabelRuns.of_labels(labels.astype(np.int64))
        return runs, int(runs.labels.max()) + 1

    @cached_property
    def digest(self) -> str:
        """See RecordReader.digest."""
        return self._reader.digest()

    def labels_of_keys(self, keys: np.ndarray, other: int) -> np.ndarray:
        """Returns the class labels, int64, of keys in the index; `other` for keys that are not images."""
        positions = self._index.search(keys) - self._first_row
        is_image = (positions >= 0) & (positions < self.num_images)
        return np.where(is_image, self.labels(np.clip(positions, 0, self.num_images - 1)), other)

    def keys(self, positions) -> np.ndarray:
        """Returns the keys, int64, of an array of positions."""
        return self._index.keys_at(np.asarray(positions) + self._first_row)

    def read_image(self, position: int) -> tuple[bytes, int]:
        """Reads (encoded image, label) at `position`. Raises as `read`."""
        label = int(self.labels(position))
        return self.read(position, label), label

    def read(self, position: int, label: int) -> bytes:
        """Reads the encoded image at `position`, whose class label is `label`.

        Raises:
            ValueError: the record is damaged, or the label in its header is not the identity whose range contains the
                key: with swapped lines in the index, the wrong class would be trained. Names file, key and offset.
        """
        record = self._reader.read_row(self._first_row + position)
        try:
            header, image = unpack(record)
        except ValueError as error:
            raise ValueError(f"{self.describe(position)} is damaged: {error}; copy the set again") from None
        in_header = header.class_label
        # The integer is compared first, as creating a float32 takes longer than unpacking the header.
        if in_header != label and in_header != np.float32(label):
            raise ValueError(
                f"{self.describe(position)} has the label {in_header:g} in its header, but its key is in the range of "
                f"identity {label}; lines of the .idx are swapped or the set is damaged: copy both again"
            )
        return image

    def describe(self, position: int) -> str:
        """See ImageSet."""
        row = self._first_row + position
        return f"{self.rec_path}: image with key {self._index.keys_at(row)} at offset {self._index.offsets[row]}"

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()
