"""A user's map-style Dataset: an object with `__len__` and `__getitem__`, such as one of PyTorch.

An item is a pair (inputs, class label), or (inputs, list or array of up to P class labels). Threads call a Dataset one
at a time, because it may hold an open file, and PyTorch calls it from one thread only. Each worker process
(`decode_processes`) makes a Dataset of its own.

Shapes: N items, P labels of an item, H, W image size.
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
from partial_fc.data.label_runs import NO_LABEL, LabelRuns, class_labels, label_array
from partial_fc.data.transforms import rgb_of, upright
from partial_fc.utils.imports import import_object
from partial_fc.utils.text import plural
from partial_fc.utils.user_code import place_in_user_code, refusal

Result = TypeVar("Result")

ADVICE = "correct the Dataset"
READING = threading.RLock()  # one for all Datasets, as Subsets share the files of their Dataset
MAX_READ = 50_000  # items that are read for their labels; more could take hours, in every process


class MapStyle(Protocol):
    """What `rec` must name, and `val_targets` with task=items."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any: ...


class LabelledDataset:
    """A Dataset with the labels of its items, from the attribute ``targets`` (as in torchvision) or from each item.

    Args:
        dataset: the Dataset, or package.module:name of a Dataset, or of a class or function that returns one.
        setting: the setting that names it, for errors.

    Attributes:
        name: for messages.
        dataset: the Dataset.
        labels: (N,) or (N, P) int64, padded with NO_LABEL.

    Raises:
        ValueError: it cannot be imported or created, has no items, or its labels are not class numbers.
    """

    def __init__(self, dataset: Any, setting: str = "rec"):
        self.name = dataset if isinstance(dataset, str) else type(dataset).__name__
        self.dataset = open_dataset(dataset, self.name, setting)
        self.labels = labels_of(self.dataset, self.name)

    @cached_property
    def digest(self) -> str:
        """The Dataset's attribute ``digest``, or else a digest of the labels (the items may contain random numbers)."""
        digest = getattr(self.dataset, "digest", None)
        return str(digest) if digest else hashlib.sha256(self.labels.tobytes()).hexdigest()[:16]

    def read(self, position: int, convert: Callable[[Any], Result]) -> Result:
        """Returns ``convert(inputs)`` of an item. Raises ValueError, which names the item, if it is bad."""
        inputs, label = read_item(self.dataset, self.name, position)
        targets = self.labels[position]
        given, expected = (each[each != NO_LABEL].tolist() for each in map(np.atleast_1d, (label, targets)))
        if given != expected:
            raise ValueError(f"{self.name}[{position}] has the label {label}, but targets have {targets}: {ADVICE}")
        try:
            return convert(inputs)
        except Exception as error:  # the inputs are the user's
            raise ValueError(f"{self.name}[{position}] {error}: {ADVICE}") from error


class DatasetImages(ImageSet):
    """The images of a Dataset. See ImageSet.

    An image is a tensor or array (3, H, W) or (H, W, 3) uint8 RGB, a Pillow image, or the bytes of an encoded image.

    Args:
        name: see LabelledDataset.
    """

    advice = ADVICE

    def __init__(self, name: str):
        self.items = LabelledDataset(name)
        labels = self.items.labels
        super().__init__(name, LabelRuns.of_labels(labels), int(labels.max()) + 1)
        if hasattr(self.items.dataset, "epoch_positions"):
            self.epoch_positions = self.items.dataset.epoch_positions

    @cached_property
    def digest(self) -> str:
        """See LabelledDataset."""
        return self.items.digest

    def read(self, position: int, label: int) -> bytes | np.ndarray:
        """See ImageSet."""
        return self.items.read(position, as_image)

    def describe(self, position: int) -> str:
        """See ImageSet."""
        return f"{self.path}[{position}]"


class DatasetItems:
    """A Dataset as Items, see item_batches.py: each item is an array or tensor, or a dict of them, and a label.

    Items whose shapes or types differ from the first readable item are bad. If the Dataset draws random numbers itself,
    a resumed training reads other items.

    Args:
        dataset: see LabelledDataset.
        digest: identifies the content; by default the digest of LabelledDataset.
        setting: see LabelledDataset.

    Raises:
        ValueError: see LabelledDataset, or no item can be read.
    """

    def __init__(self, dataset: Any, digest: str = "", setting: str = "rec"):
        self._items = LabelledDataset(dataset, setting)
        self.digest = digest or self._items.digest
        self.labels = self._items.labels
        self.num_classes = int(self.labels.max()) + 1
        if hasattr(self._items.dataset, "epoch_positions"):
            self.epoch_positions = self._items.dataset.epoch_positions
        for position in range(len(self)):
            try:
                self._form = shapes_of(self._items.read(position, as_arrays))
                break
            except ValueError as error:
                if position == len(self) - 1:
                    raise ValueError(f"{error}; no other item can be used either") from None

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
        """See Items."""
        return f"{self._items.name}[{position}]"

    def close(self) -> None:
        """Does nothing, because the Dataset belongs to the user."""

    def _checked(self, inputs: Any) -> Inputs:
        arrays = as_arrays(inputs)
        if shapes_of(arrays) != self._form:
            raise ValueError(f"is {shapes_of(arrays)}, but other items are {self._form}")
        return arrays


def as_arrays(inputs: Any) -> Inputs:
    """Returns an item's inputs as arrays; rotates Pillow images by EXIF. Raises ValueError if they are not numbers."""
    arrays = map_inputs(lambda each: upright(each) if isinstance(each, Image.Image) else np.asarray(each), inputs)
    for array in arrays.values() if isinstance(arrays, Mapping) else [arrays]:
        if array.dtype.kind not in "biufc":
            raise ValueError(f"is {type(inputs).__name__} of {array.dtype}, expected a tensor, or a dict of tensors")
    return arrays


def shapes_of(inputs: Inputs) -> Any:
    """Returns type and shape of each array as text, for comparison and messages."""
    return map_inputs(lambda array: f"{array.dtype} {array.shape}", inputs)


def as_image(image: Any) -> bytes | np.ndarray:
    """Converts an image of a Dataset to what ImageSet.read returns."""
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


def open_dataset(dataset: Any, name: str, setting: str) -> Any:
    """Returns a map-style Dataset: `dataset`, the object that it names, or what such a class or function returns.

    Raises:
        ValueError: it cannot be imported or created, has no items, or is not a map-style Dataset.
    """
    if isinstance(dataset, str):
        dataset = import_object(dataset, setting, MapStyle)
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        try:
            dataset = dataset()
        except (Exception, SystemExit) as error:  # of the user's code
            raise refusal(error, f"{setting} is {name}, which failed: ") from error
    try:
        count = len(dataset)
        dataset.__getitem__  # noqa: B018
    except (TypeError, AttributeError, NotImplementedError):
        raise ValueError(
            f"{setting} is {name}, a {type(dataset).__name__} without __len__ and __getitem__: expected a map-style "
            "Dataset, whose items can be read in any order"
        ) from None
    if not count:
        raise ValueError(f"{setting} is {name}, which has no items")
    return dataset


def labels_of(dataset: Any, name: str) -> np.ndarray:
    """Returns labels (N,) or (N, P) int64 of a Dataset: its ``targets``, or those of the items of a small Dataset."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        what = plural(len(dataset), "item")
        if len(dataset) > MAX_READ:
            raise ValueError(
                f"{name} has {what} and no attribute targets: reading each item for its label may take hours. Give the "
                "Dataset targets, the labels of all items in order, such as self.targets = [0, 0, 1]"
            )
        logging.info("%s has no targets: reading %s for their labels", name, what)
        try:
            targets = [read_item(dataset, name, position)[1] for position in range(len(dataset))]
        except ValueError as error:
            raise ValueError(f"{error}; {name} has no targets, so each item is read for its label") from error
    labels = class_labels(targets, name)
    if len(labels) != len(dataset):
        raise ValueError(f"{name} has {len(dataset)} items, but {len(labels)} targets: expected one for each")
    return labels


def read_item(dataset: Any, name: str, position: int) -> tuple[Any, int | np.ndarray]:
    """Returns (inputs, label or labels (P,)) of an item. Raises ValueError, which names it, if it cannot be read."""
    try:
        with READING:
            item = dataset[position]
        if isinstance(item, Mapping):  # two keys would unpack like a pair
            keys = ", ".join(map(str, item))
            raise TypeError(
                f"it is a {type(item).__name__} with the keys {keys}, expected a pair of inputs and label; for a set "
                "of Hugging Face, set rec to the folder that its save_to_disk writes"
            )
        inputs, label = item
        if np.ndim(label) == 1:
            labels = label_array([label])[0]
            if labels.dtype.kind in "iu":
                return inputs, labels
        elif hasattr(label, "__index__"):
            return inputs, operator.index(label)
        raise TypeError(f"its label is of type {type(label).__name__}, expected an integer from 0, or a list of them")
    except Exception as error:  # of the user's code: a missing file, a damaged image, not a pair
        # The message says where it failed, because a worker process sends it without the traceback.
        where = f" in {place}" if (place := place_in_user_code(error)) else ""
        text = f"{name}[{position}] cannot be read ({type(error).__name__}{where}: {error})"
        if "thread" in str(error) and threading.current_thread() is not threading.main_thread():  # such as sqlite3
            text += "; to read in the thread that opens it, set decode_processes=1 or more"
        raise ValueError(text) from error
