"""A set of labelled images that are read by position; face_records.py and sources/ have a subclass for each form.

Shapes: N images, C identities, P positions, H, W image size.
"""

import errno
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from partial_fc.utils.regular_files import OutsideError, read_image_file

from .label_runs import MAX_CLASSES, LabelRuns

# Errors of a single file, which make its image bad; others, such as EIO, end the training.
BAD_FILE_ERRORS = {
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EACCES,
    errno.EINVAL,
    errno.ENXIO,
    errno.EFBIG,
    errno.ELOOP,
}
SAMPLES = 64  # images that are part of a digest


class ImageSet:
    """The images of a set by position 0 .. N-1. Thread-safe.

    Args:
        path: the value of `rec` that names the set, for messages.
        runs: the labels of the images.
        num_identities: C.

    Raises:
        ValueError: a label is too large for a class number.

    Attributes:
        path, runs, num_identities: as above.
        num_images: N.
        image_size: (H, W) if the set specifies it, otherwise None.
        advice: what to do about an image that cannot be decoded.
        left_out: paths of files in the set that are not images.
        names: names of the C identities if the set has them in its own format; empty otherwise.
    """

    image_size: tuple | None = None
    advice = "replace or remove it"
    left_out: Sequence[str] = ()
    names: Sequence[str] = ()

    def __init__(self, path: str, runs: LabelRuns, num_identities: int):
        if num_identities > MAX_CLASSES:
            raise ValueError(f"{path} has the label {num_identities - 1}: number the classes from 0")
        self.path, self.runs, self.num_identities = path, runs, num_identities
        self.num_images = runs.num_images

    def read(self, position: int, label: Any) -> bytes | np.ndarray:
        """Reads the image at `position`, whose class label is `label`; if images have several, it is a list of them.

        Returns:
            The encoded image, or its pixels (H, W, 3) uint8 RGB, which the caller may modify.

        Raises:
            ValueError: this image is bad; the message names it.
            OSError: the files cannot be read.
        """
        raise NotImplementedError

    def read_file(self, path: str, *roots: str) -> bytes:
        """Reads an image file that is inside one of the folders `roots`.

        Raises:
            ValueError: the file is missing, not regular, too large, or outside of all folders.
            OSError: the file system cannot be read.
        """
        try:
            for root in roots[:-1]:
                with suppress(OutsideError):
                    return read_image_file(path, root)
            return read_image_file(path, roots[-1])
        except OSError as error:
            if error.errno not in BAD_FILE_ERRORS:
                raise OSError(error.errno, error.strerror, path) from None
            raise ValueError(f"{path} cannot be read ({error.strerror}): {self.advice}") from None

    def describe(self, position: int) -> str:
        """Says where an image is, for error messages."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files; a second call has no effect."""

    def labels(self, positions) -> np.ndarray:
        """Returns the class labels (P,), or several of each image (P, n), int64, of an array of positions (P,)."""
        return self.runs.labels[np.searchsorted(self.runs.starts, positions, side="right") - 1]

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the content, whatever its path and form; a train.rec has others.

        They depend on all labels and on SAMPLES images; hashing every image would read the whole set.
        """
        digest = hashlib.sha256(f"{self.num_images} {self.num_identities}".encode())
        digest.update(self.runs.starts.tobytes())
        digest.update(self.runs.labels.tobytes())
        for position in np.unique(np.linspace(0, self.num_images - 1, SAMPLES).astype(int)).tolist():
            with suppress(ValueError):
                stored = self.read(position, self.labels(position).tolist())
                digest.update(stored if isinstance(stored, bytes) else stored.data)
        return digest.hexdigest()[:16]
