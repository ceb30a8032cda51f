"""Labels in a file beside a set, which take the place of the labels in the set.

Shapes: N items of the set, P labels of an item, C classes, n positions.
"""

import copy
import hashlib
from collections.abc import Iterator

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.utils.text import plural

from .batch import Batch
from .item_batches import Items, describe, read_counted
from .label_runs import MAX_LABELS, NO_LABEL, each_label

BLOCK = 1 << 22  # labels in memory at a time


class FileLabels:
    """A set whose items have the labels of a file, see Items in item_batches.py. Thread-safe.

    The file stays on the disk: it is read once in blocks, to check it, and then the labels of each batch.

    Args:
        items: the set; its own labels are ignored.
        path: path of a .npy file of integers (N,) or (N, P); NO_LABEL stands for no label.
        num_classes: C.
        min_images: leave out classes with fewer items, and items that have no other label.

    Raises:
        OSError, ValueError: the file cannot be read, has other items than the set, or a label is not below C; names it.
    """

    def __init__(self, items: Items, path: str, num_classes: int, min_images: int = 0):
        self.items = items
        self._few: np.ndarray | None = None  # (C + 1,) bool, whether a class is left out; the last one is NO_LABEL
        self._positions: np.ndarray | None = None  # of the items that are kept, in the set
        labels: np.ndarray = open_array(path)
        allowed = labels.ndim in (1, 2) and 0 not in labels.shape and labels.size <= MAX_LABELS * len(labels)
        if not allowed or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{path} holds {labels.dtype} of shape {labels.shape}, expected integers of shape (N,) or (N, P), P at "
                f"most {MAX_LABELS}"
            )
        if len(labels) != len(items):
            raise ValueError(f"{path} has labels of {plural(len(labels), 'item')}, but the set has {len(items)}")
        self._file = labels
        digest, lowest, self.num_classes = hashlib.sha256(items.digest.encode()), 0, 0
        for start, block in self._blocks():
            digest.update(np.ascontiguousarray(block, "<i8").data)
            smallest, largest = int(block.min()), int(block.max())
            lowest, self.num_classes = min(lowest, smallest), max(self.num_classes, largest + 1)
            if smallest < NO_LABEL or largest >= num_classes:
                wrong = (block < NO_LABEL) | (block >= num_classes)
                item, label = start + wrong.nonzero()[0][0], block[wrong][0]
                raise ValueError(
                    f"{path}: {describe(items, int(item))} has the label {label}, expected {NO_LABEL} for none or 0 to "
                    f"{num_classes - 1}: set num_classes, or correct the file"
                )
        if not self.num_classes:
            raise ValueError(f"{path}: no item has a label")
        self.digest = digest.hexdigest()[:16]
        if lowest == NO_LABEL and labels.ndim == 1:
            self._file = labels[:, None]
        self.order_entries = {**getattr(items, "order_entries", {})}
        if min_images:
            self.order_entries["images_filter"] = min_images
            self._leave_out(min_images)

    def _blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the labels of the file in blocks, with the position of the first item of each."""
        size = max(1, BLOCK // (self._file.size // len(self._file)))
        for start in range(0, len(self._file), size):
            yield start, self._file[start : start + size]

    def _leave_out(self, min_images: int) -> None:
        """Leaves out classes with fewer items, see FileLabels."""
        counts = np.zeros(self.num_classes + 1, np.int64)  # the last one, at NO_LABEL, stays 0
        for _, block in self._blocks():
            counts += np.bincount(each_label(block.astype(np.int64))[1], minlength=len(counts))
        self._few = few = counts < min_images
        kept = [~few[block].reshape(len(block), -1).all(axis=1) for _, block in self._blocks()]
        self._positions = np.flatnonzero(np.concatenate(kept))
        if not len(self._positions):
            raise ValueError(
                f"no class has {min_images} items, the largest has {counts.max()}: decrease min_images_per_class"
            )

    def _in_set(self, positions: np.ndarray) -> np.ndarray:
        return positions if self._positions is None else self._positions[positions]

    def _labels_of(self, in_set: np.ndarray) -> np.ndarray:
        """Returns the labels (n,) or (n, P) int64 of items at positions (n,) of the set."""
        labels = np.array(self._file[in_set], np.int64)
        return labels if self._few is None else np.where(self._few[labels], NO_LABEL, labels)

    def __len__(self) -> int:
        return len(self.items) if self._positions is None else len(self._positions)

    @property
    def labels(self) -> np.ndarray:
        """Labels (N,) or (N, P) int64 of all items, in new memory."""
        return self._labels_of(self._in_set(np.arange(len(self))))

    @property
    def without_augmentation(self) -> "FileLabels":
        """The same items without augmentation."""
        items = copy.copy(self)
        items.items = getattr(self.items, "without_augmentation", self.items)
        return items

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """See Items."""
        return self.read_counted(positions, epoch)[0]

    def read_counted(self, positions: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        """See Items; the labels are not counted."""
        in_set = self._in_set(positions)
        batch, num_bytes, seconds = read_counted(self.items, in_set, epoch)
        return Batch(batch[0], self._labels_of(in_set)), num_bytes, seconds

    def describe(self, position: int) -> str:
        """See Items."""
        return describe(self.items, int(self._in_set(np.array([position]))[0]))

    def close(self) -> None:
        """Closes the set."""
        self.items.close()
