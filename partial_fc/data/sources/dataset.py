"""A map-style Dataset of a user, by name: an object with `__len__` and `__getitem__`, such as one of PyTorch.

An item is a pair of what is learned from, and the class label, an integer. Threads read items one at a time: a Dataset
may have an open file, as PyTorch calls one from one thread. Processes (`decode_processes`) have one each.

Shapes: N items, H, W image size.
"""

import hashlib
import logging
import operator
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from PIL import Image

from partial_fc.data.batch import Batch, Inputs, map_inputs
from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns, class_labels
from partial_fc.data.read_log import ReadLog
from partial_fc.data.transforms import rgb_of, upright
from partial_fc.utils.imports import import_object
from partial_fc.utils.text import plural
from partial_fc.utils.user_code import place_in_user_code, refusal

Result = TypeVar("Result")

ADVICE = "correct the Dataset"
READING = threading.RLock()  # one for all Datasets: parts of one, such as Subsets, share its files
MOST_READ = 50_000  # items for their labels; more would take hours without a sign, in every process


class MapStyle(Protocol):
    """What a Dataset needs."""

    def __len__(self) -> int:
        """Returns N."""
        ...

    def __getitem__(self, position: int, /) -> Any:
        """Returns an item."""
        ...


class LabelledDataset:
    """A Dataset and the labels of its items: its attribute ``targets``, as torchvision's have it, or read with them.

    Args:
        dataset: the Dataset, or package.module:name of one, or of a class or function that makes one without arguments.

    Attributes:
        name: for messages.
        dataset: as above.
        labels: (N,) int64.

    Raises:
        ValueError: it cannot be imported or made, has no items, or labels of another form.
    """

    def __init__(self, dataset: Any):
        self.name = dataset if isinstance(dataset, str) else type(dataset).__name__
        self.dataset = open_dataset(dataset, self.name)
        self.labels = labels_of(self.dataset, self.name)

    @cached_property
    def digest(self) -> str:
        """That of the Dataset if it has one, otherwise of the labels: reading an item may have random effects."""
        own = getattr(self.dataset, "digest", None)
        return str(own) if own else hashlib.sha256(self.labels.tobytes()).hexdigest()[:16]

    def read(self, position: int, convert: Callable[[Any], Result]) -> Result:
        """Returns ``convert(inputs)`` of an item. Raises ValueError, which names it, if it is bad."""
        inputs, label = read_item(self.dataset, self.name, position)
        if label != self.labels[position]:
            raise ValueError(
                f"{self.name}[{position}] has the label {label}, but targets have {self.labels[position]}: {ADVICE}"
            )
        try:
            return convert(inputs)
        except Exception as error:  # the inputs are the user's
            raise ValueError(f"{self.name}[{position}] {error}: {ADVICE}") from error


class DatasetImages(ImageSet):
    """The images of a Dataset. See ImageSet.

    An image is a tensor or array (3, H, W) or (H, W, 3) uint8 RGB, an image of Pillow, or an encoded image as bytes.

    Args:
        name: see LabelledDataset.
    """

    advice = ADVICE

    def __init__(self, name: str):
        self.items = LabelledDataset(name)
        labels = self.items.labels
        super().__init__(name, LabelRuns.of_labels(labels), int(labels.max()) + 1)

    @cached_property
    def digest(self) -> str:
        """See LabelledDataset."""
        return self.items.digest

    def read(self, position: int, label: int) -> bytes | np.ndarray:
        """See ImageSet."""
        return self.items.read(position, as_image)

    def describe(self, position: int) -> str:
        """Names the item of an image."""
        return f"{self.path}[{position}]"


class DatasetItems:
    """Any items of a Dataset, see Items in item_batches.py: an array or tensor, or a dict of them, and a label.

    All have the shapes and types of the first item that can be read; others are bad. A Dataset that draws random
    numbers itself gives others to a resumed training.

    Args:
        dataset: see LabelledDataset.
        digest: identifies the content; empty for that of LabelledDataset.

    Raises:
        ValueError: see LabelledDataset, or no item can be read.
    """

    def __init__(self, dataset: Any, digest: str = ""):
        self._items = LabelledDataset(dataset)
        self.digest = digest or self._items.digest
        self.labels = self._items.labels
        self.num_classes = int(self.labels.max()) + 1
        log = ReadLog(may_skip=len(self))
        log.quiet = True

        def read(position: int) -> Inputs:
            return self._items.read(position, as_arrays)

        self._form = form_of(log.first_good(0, read, lambda position: (position + 1) % len(self)))

    def __len__(self) -> int:
        return len(self._items.labels)

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """See Items."""
        inputs = [self._items.read(position, self._checked) for position in positions.tolist()]
        if isinstance(inputs[0], Mapping):
            stacked: Inputs = {name: np.stack([each[name] for each in inputs]) for name in inputs[0]}
        else:
            stacked = np.stack(inputs)
        return Batch(stacked, self._items.labels[positions])

    def describe(self, position: int) -> str:
        """Names an item."""
        return f"{self._items.name}[{position}]"

    def close(self) -> None:
        """Does nothing: the Dataset is the user's."""

    def _checked(self, inputs: Any) -> Inputs:
        arrays = as_arrays(inputs)
        if form_of(arrays) != self._form:
            raise ValueError(f"is {form_of(arrays)}, but other items are {self._form}")
        return arrays


def as_arrays(inputs: Any) -> Inputs:
    """Returns the inputs of an item as arrays, an image of Pillow upright. Raises ValueError if they are no numbers."""
    arrays = map_inputs(lambda each: upright(each) if isinstance(each, Image.Image) else np.asarray(each), inputs)
    for array in arrays.values() if isinstance(arrays, Mapping) else [arrays]:
        if array.dtype.kind not in "biufc":
            raise ValueError(f"is {type(inputs).__name__} of {array.dtype}, expected a tensor, or a dict of tensors")
    return arrays


def form_of(inputs: Inputs) -> Any:
    """Returns shape and type of each array, for comparison and messages."""
    return map_inputs(lambda array: f"{array.dtype} {array.shape}", inputs)


def as_image(image: Any) -> bytes | np.ndarray:
    """Returns an image of a Dataset as ImageSet.read does."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return rgb_of(image)
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or 3 not in (pixels.shape[0], pixels.shape[2]):
        raise ValueError(
            f"is {pixels.dtype} of shape {pixels.shape}, expected an image uint8 (3, height, width) RGB, which the "
            "training augments and normalizes"
        )
    return np.array(pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels, order="C")


def open_dataset(dataset: Any, name: str) -> Any:
    """Returns a map-style Dataset: the given one, or the one that ``package.module:name`` is or makes.

    Raises:
        ValueError: it cannot be imported or made, has no items, or is no map-style Dataset.
    """
    found = import_object(dataset, "rec", MapStyle) if isinstance(dataset, str) else dataset
    if isinstance(found, type) or not hasattr(found, "__getitem__"):
        try:
            found = found()
        except (Exception, SystemExit) as error:  # the user's
            raise refusal(error, f"rec is {name}, which ends with ") from error
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
    """Returns labels (N,) int64 of a Dataset: its ``targets``, or those of all items, if they are not too many."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        what = plural(len(dataset), "item")
        if len(dataset) > MOST_READ:
            raise ValueError(
                f"{name} has {what} and no attribute targets: reading each of them for its label may take hours. Give "
                "the Dataset targets, the labels of all items in order, such as self.targets = [0, 0, 1]"
            )
        logging.info("%s has no targets: reading %s for their labels", name, what)
        try:
            targets = [read_item(dataset, name, position)[1] for position in range(len(dataset))]
        except ValueError as error:
            raise ValueError(f"{error}; it has no targets, so that each item is read for its label") from error
    labels = np.asarray(targets)
    if labels.shape != (len(dataset),) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name} has {len(dataset)} items, but targets of shape {labels.shape} and type {labels.dtype}: expected "
            "an integer from 0 for each"
        )
    return class_labels(labels, name)


def read_item(dataset: Any, name: str, position: int) -> tuple[Any, int]:
    """Returns (inputs, label) of an item. Raises ValueError, which names it, if it cannot be read."""
    try:
        with READING:
            item = dataset[position]
        if isinstance(item, Mapping):  # its keys could be taken for a pair
            keys = ", ".join(map(str, item))
            raise TypeError(
                f"it is a {type(item).__name__} with the keys {keys}, expected a pair of inputs and label; of a set of "
                "Hugging Face, set rec to the folder that its save_to_disk writes"
            )
        inputs, label = item
        if not hasattr(label, "__index__"):
            raise TypeError(f"its label is of type {type(label).__name__}, expected an integer from 0")
        return inputs, operator.index(label)
    except Exception as error:  # the user's: a missing file, a damaged image, another form
        # The place here, too: a worker process sends the message without the error's traceback.
        where = f" in {place}" if (place := place_in_user_code(error)) else ""
        text = f"{name}[{position}] cannot be read ({type(error).__name__}{where}: {error})"
        if "thread" in str(error) and threading.current_thread() is not threading.main_thread():  # sqlite3, for example
            text += "; to read in the thread that opens it, set decode_processes=1 or more"
        raise ValueError(text) from error
