"""Labels in a file beside a set, which take the place of the labels in the set.

Shapes: N items of the set, P labels of an item, C classes, n positions.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.utils.text import plural

from .batch import Batch
from .item_batches import Items, describe, read_counted
from .label_runs import MAX_LABELS, NO_LABEL, each_label

BLOCK = 1 << 22  # labels in memory at a time


class LabelFacts(NamedTuple):
    """What reading a whole file of labels shows."""

    digest_of_set: str  # without the labels
    digest: str  # of the set with these labels
    num_classes: int  # the largest label, and 1
    lowest: int  # 0, or NO_LABEL if an item lacks a label
    few: np.ndarray | None = None  # (C + 1,) bool, which classes are left out, and NO_LABEL
    kept: np.ndarray | None = None  # positions of the items that are not left out


class FileLabels:
    """A set whose items have the labels of a file, see Items in item_batches.py. Thread-safe.

    The file stays on the disk: it is read once in blocks, to check it, and then the labels of each batch.

    Args:
        items: the set; its own labels are ignored.
        path: path of a .npy file of integers (N,) or (N, P); NO_LABEL stands for no label.
        num_classes: C.
        min_images: leave out classes with fewer items, and items that have no other label.
        report_progress: called for each block.
        facts: attribute ``facts`` of another process with the same arguments, which then are not read from the file.

    Attributes:
        items, num_classes, digest, order_entries, epoch_positions: see Items.
        facts: what reading the whole file has shown.

    Raises:
        OSError, ValueError: the file cannot be read, has other items than the set, or a label is not below C; names it.
    """

    def __init__(
        self,
        items: Items,
        path: str,
        num_classes: int,
        min_images: int = 0,
        report_progress: Callable[[], object] = lambda: None,
        facts: LabelFacts | None = None,
    ):
        labels: np.ndarray = open_array(path)
        allowed = labels.ndim in (1, 2) and 0 not in labels.shape and labels.size <= MAX_LABELS * len(labels)
        if not allowed or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{path} holds {labels.dtype} of shape {labels.shape}, expected integers of shape (N,) or (N, P), P at "
                f"most {MAX_LABELS}"
            )
        if len(labels) != len(items):
            raise ValueError(f"{path} has labels of {plural(len(labels), 'item')}, but the set has {len(items)}")
        self.items, self._file = items, labels
        if facts is None or facts.digest_of_set != items.digest:
            facts = self._read(path, num_classes, min_images, report_progress)
        self.facts, self.num_classes, self.digest = facts, facts.num_classes, facts.digest
        self.order_entries = {**getattr(items, "order_entries", {})}
        if min_images:
            self.order_entries["images_filter"] = min_images
        if hasattr(items, "epoch_positions"):
            self.epoch_positions = items.epoch_positions
        if facts.lowest == NO_LABEL and labels.ndim == 1:
            self._file = labels[:, None]

    def _read(self, path: str, num_classes: int, min_images: int, report_progress: Callable[[], object]) -> LabelFacts:
        """Reads all labels, twice if classes are left out; for the arguments and errors see FileLabels."""
        digest, lowest, largest = hashlib.sha256(self.items.digest.encode()), 0, NO_LABEL
        counts = np.zeros(num_classes + 1 if min_images else 0, np.int64)  # one more for NO_LABEL
        for start, block in self._blocks(report_progress):
            digest.update(np.ascontiguousarray(block, "<i8").data)
            lowest, largest = min(lowest, int(block.min())), max(largest, int(block.max()))
            if lowest < NO_LABEL or largest >= num_classes:
                wrong = (block < NO_LABEL) | (block >= num_classes)
                item, label = start + wrong.nonzero()[0][0], block[wrong][0]
                raise ValueError(
                    f"{path}: {describe(self.items, int(item))} has the label {label}, expected {NO_LABEL} for none or "
                    f"0 to {num_classes - 1}: set num_classes, or correct the file"
                )
            if min_images:
                signed = block.astype(np.int64).reshape(len(block), -1)
                counts += np.bincount(each_label(signed)[1], minlength=len(counts))
        if largest == NO_LABEL:
            raise ValueError(f"{path}: no item has a label")
        facts = LabelFacts(self.items.digest, digest.hexdigest()[:16], largest + 1, lowest)
        if not min_images:
            return facts
        few = counts < min_images
        left = [~few[block].reshape(len(block), -1).all(axis=1) for _, block in self._blocks(report_progress)]
        kept = np.flatnonzero(np.concatenate(left))
        if not len(kept):
            raise ValueError(
                f"{path}: no class has {min_images} items, the largest has {counts.max()}: decrease "
                "min_images_per_class"
            )
        return facts._replace(few=few, kept=kept)

    def _blocks(self, report_progress: Callable[[], object]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the labels of the file in blocks, with the position of the first item of each."""
        size = max(1, BLOCK // (self._file.size // len(self._file)))
        for start in range(0, len(self._file), size):
            report_progress()
            yield start, self._file[start : start + size]

    def _in_set(self, positions: np.ndarray) -> np.ndarray:
        return positions if self.facts.kept is None else self.facts.kept[positions]

    def _labels_of(self, in_set: np.ndarray) -> np.ndarray:
        """Returns the labels (n,) or (n, P) int64 of items at positions (n,) of the set."""
        labels = np.array(self._file[in_set], np.int64)
        return labels if self.facts.few is None else np.where(self.facts.few[labels], NO_LABEL, labels)

    def __len__(self) -> int:
        return len(self.items) if self.facts.kept is None else len(self.facts.kept)

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
