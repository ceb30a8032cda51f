"""A map-style Dataset of a user, by name: an object with `__len__` and `__getitem__`, such as one of PyTorch.

An item is a pair of what is learned from, and the class label, an integer.

Shapes: N items, H, W image size.
"""

import hashlib
import logging
import operator
from functools import cached_property
from typing import Any

import numpy as np

from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns
from partial_fc.utils.imports import import_object
from partial_fc.utils.text import plural


class DatasetImages(ImageSet):
    """The images of a Dataset. See ImageSet.

    An image is a tensor or array (3, H, W) or (H, W, 3) uint8 RGB, an RGB image of Pillow, or an encoded image as
    bytes. Labels are the attribute ``targets`` of the Dataset, as torchvision's have it, or are read with all items.

    Args:
        name: package.module:name of a Dataset, or of a class or function that makes one without arguments.
    """

    advice = "correct the Dataset"

    def __init__(self, name: str):
        self.dataset = open_dataset(name)
        labels = labels_of(self.dataset, name)
        super().__init__(name, LabelRuns.of_labels(labels), int(labels.max()) + 1)

    @cached_property
    def digest(self) -> str:
        """That of the Dataset if it has one, otherwise of the labels: reading an item may have random effects."""
        own = getattr(self.dataset, "digest", None)
        labels = [self.runs.starts.tobytes(), self.runs.labels.tobytes(), str(self.num_images).encode()]
        return str(own) if own else hashlib.sha256(b"".join(labels)).hexdigest()[:16]

    def read(self, position: int, label: int) -> bytes | np.ndarray:
        """See ImageSet."""
        image, found = read_item(self.dataset, self.path, position)
        if found != label:
            raise ValueError(
                f"{self.describe(position)} has the label {found}, but targets have {label}: {self.advice}"
            )
        if isinstance(image, bytes):
            return image
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or 3 not in (pixels.shape[0], pixels.shape[2]):
            raise ValueError(
                f"{self.describe(position)} is {pixels.dtype} of shape {pixels.shape}, expected an image uint8 "
                f"(3, height, width) RGB, which the training augments and normalizes: {self.advice}"
            )
        return np.array(pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels, order="C")

    def describe(self, position: int) -> str:
        """Names the item of an image."""
        return f"{self.path}[{position}]"


def open_dataset(name: str) -> Any:
    """Returns the Dataset that ``package.module:name`` is or makes.

    Raises:
        ValueError: it cannot be imported or made, has no items, or is no map-style Dataset.
    """
    found = import_object(name, "rec")
    if isinstance(found, type) or not hasattr(found, "__getitem__"):
        try:
            found = found()
        except Exception as error:  # the user's
            raise ValueError(f"rec is {name}, which ends with {type(error).__name__}: {error}") from error
    try:
        count = len(found)
        found.__getitem__  # noqa: B018
    except (TypeError, AttributeError, NotImplementedError):
        raise ValueError(
            f"rec is {name}, a {type(found).__name__} without __len__ and __getitem__: a map-style Dataset is needed, "
            "whose items can be read in any order"
        ) from None
    if not count:
        raise ValueError(f"rec is {name}, which has no items")
    return found


def labels_of(dataset: Any, name: str) -> np.ndarray:
    """Returns labels (N,) int64 of a Dataset: its ``targets``, or those of its items, which are all read for it."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        what = plural(len(dataset), "item")
        logging.info("%s has no targets: reading %s for their labels", name, what)
        targets = [read_item(dataset, name, position)[1] for position in range(len(dataset))]
    labels = np.asarray(targets)
    if labels.shape != (len(dataset),) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"{name} has {len(dataset)} items, but targets of shape {labels.shape} and type {labels.dtype}: expected "
            "an integer from 0 for each"
        )
    return labels.astype(np.int64)


def read_item(dataset: Any, name: str, position: int) -> tuple[Any, int]:
    """Returns (inputs, label) of an item. Raises ValueError, which names it, if it cannot be read."""
    try:
        inputs, label = dataset[position]
        return inputs, operator.index(label)
    except Exception as error:  # the user's: a missing file, a damaged image, another form
        raise ValueError(f"{name}[{position}] cannot be read ({type(error).__name__}: {error})") from error
