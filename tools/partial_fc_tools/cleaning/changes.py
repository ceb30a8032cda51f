"""What becomes of every image, and the list of the changes, changes.csv.

Shapes: N images, C classes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.utils.tables import CsvWriter

from .centers import Classes, Fit
from .duplicates import Duplicates
from .nearest import Nearest
from .overlap import Overlap
from .wrong_labels import WrongLabels

CHANGES = "changes.csv"
COLUMNS = ("key", "class", "new_class", "reason", "own", "near", "other")
UNREADABLE, WRONG, SPLIT, DUPLICATE, TEST_IMAGE, TEST_PERSON = range(1, 7)
REASONS = {
    UNREADABLE: "unreadable",
    WRONG: "wrong label",
    SPLIT: "split class",
    DUPLICATE: "near-duplicate",
    TEST_IMAGE: "test image",
    TEST_PERSON: "test person",
}
REMOVED = -1


class Changes(NamedTuple):
    """What becomes of every image. The last rule that applies to an image gives the reason."""

    classes: np.ndarray  # (N,) int64, the class row of each image afterwards, REMOVED for none
    reasons: np.ndarray  # (N,) uint8, a key of REASONS, 0 for an image that nothing happens to
    near: np.ndarray  # (N,) float32, cosine to what an image is near, NaN without such a thing
    other: np.ndarray  # (N,) int64, what that is: a class row, the position of an image, or the number of a test image
    merged: np.ndarray  # (C,) int64, the class row that each class is merged into, its own without a merge

    @classmethod
    def none(cls, classes: np.ndarray) -> "Changes":
        """Returns the changes of a set to which nothing happens, with the class rows (N,) of its images."""
        length = len(classes)
        near, other = np.full(length, np.nan, np.float32), np.full(length, -1)
        return cls(classes.copy(), np.zeros(length, np.uint8), near, other, np.arange(classes.max() + 1))

    def add_unreadable(self, unreadable: np.ndarray) -> None:
        """Removes images, (N,) bool."""
        self.classes[unreadable], self.reasons[unreadable] = REMOVED, UNREADABLE

    def add_wrong_labels(self, found: WrongLabels, other: Nearest) -> None:
        """Moves images with wrong labels to their classes, and removes those whose class is not known."""
        self._set(found.images, found.classes, WRONG, other.best[found.images], other.center[found.images])

    def add_split_classes(self, groups: Iterable[Sequence[int]], sizes: np.ndarray, centers: np.ndarray) -> None:
        """Gives the images of all classes of a group to that with the most images, by ``sizes`` (C,)."""
        for group in groups:
            self.merged[list(group)] = max(group, key=lambda each: (sizes[each], -each))
        moved = np.flatnonzero((self.classes >= 0) & (self.merged[self.classes] != self.classes))
        before, after = self.classes[moved], self.merged[self.classes[moved]]
        cosine = np.einsum("ne,ne->n", centers[before], centers[after])
        split = self.reasons[moved] == 0  # a wrong label stays the reason of its image
        self.classes[moved] = after
        self._set(moved[split], after[split], SPLIT, cosine[split], after[split])

    def add_duplicates(self, found: Duplicates) -> None:
        """Removes near-duplicates."""
        self._set(found.images, REMOVED, DUPLICATE, found.cosines, found.kept)

    def add_overlap(self, found: Overlap, of_images: Nearest, of_tests: Nearest) -> None:
        """Removes images and classes that are in test sets."""
        test_of = np.full(len(self.merged), -1)
        test_of[found.classes] = found.class_tests
        persons = np.flatnonzero((self.classes >= 0) & (test_of[self.classes] >= 0))
        tests = test_of[self.classes[persons]]
        self._set(persons, REMOVED, TEST_PERSON, of_tests.best[tests], tests)
        self._set(found.images, REMOVED, TEST_IMAGE, of_images.best[found.images], found.image_tests)

    def _set(self, images: np.ndarray, classes, reason: int, near: np.ndarray, other: np.ndarray) -> None:
        self.classes[images], self.reasons[images] = classes, reason
        self.near[images], self.other[images] = near, other


def write_changes(
    path: str, changes: Changes, records: FaceRecords, classes: Classes, fit: Fit, test_name: Callable[[int], str]
) -> None:
    """Writes a line for each image that changes, in the order of the set.

    ``class`` and ``new_class`` are labels of the old set, the latter empty for a removed image; ``own`` and ``near``
    are cosines; ``other`` is the class, the key of the image or the test image that it is near.
    """
    changed = np.flatnonzero(changes.reasons)
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = CsvWriter(file)
        writer.writerow(COLUMNS)
        for image, key in zip(changed.tolist(), records.keys(changed).tolist()):
            after, reason = changes.classes[image], int(changes.reasons[image])
            writer.writerow(
                [
                    key,
                    classes.names[classes.rows[image]],
                    "" if after == REMOVED else classes.names[after],
                    REASONS[reason],
                    _cosine(fit.figures.own[image]),
                    _cosine(changes.near[image]),
                    _other(changes.other[image], reason, records, classes, test_name),
                ]
            )


def _cosine(value: np.float32) -> str:
    return f"{value:.4f}" if np.isfinite(value) else ""


def _other(other: int, reason: int, records: FaceRecords, classes: Classes, test_name: Callable[[int], str]) -> str:
    if reason == DUPLICATE:
        return f"key {records.keys([other])[0]}"
    if reason in (TEST_IMAGE, TEST_PERSON):
        return test_name(int(other))
    return "" if other < 0 else f"class {classes.names[other]}"
