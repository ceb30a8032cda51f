"""What becomes of every image, and the rules and limits that decide it.

Wrong label: the image is far from its class (its cosine to the mean of the other typical images is below ``far``), and
nearer to another class, with a cosine of at least ``near`` to its center. It gets that class as its label if the next
class trails by ``sure`` or more; otherwise its class is unknown. An image that is far from all classes stays: on the
glyphs four of five such images are hard images with the right label.

Test image: a near-duplicate of a test image, see duplicates.py. Test person: a class whose center is the nearest to a
test image, with a cosine of at least ``person``, if the next center trails by ``sure`` or more. Both are removed.

Split classes and near-duplicates: see split_classes.py and duplicates.py.

Shapes: N images, C classes, T test images, D near-duplicates, K images with altered copies (copies.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .centers import Fit
from .nearest import Nearest

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


class Limits(NamedTuple):
    """Limits of the rules: cosines, except ``sure`` and ``split``, which are differences of cosines."""

    far: float
    near: float
    sure: float
    split: float
    duplicate: float
    person: float


def limits_of(fit: Fit, nearest_other: Nearest, copies: np.ndarray, shares: Mapping[str, float]) -> Limits:
    """Returns the limits: quantiles of the cosines in this set.

    Args:
        fit: the centers.
        nearest_other: the nearest other class of each of the N images.
        copies: (K,) cosines of images to their altered copies.
        shares: the quantiles, by the names in ``command.SHARES``.
    """
    typical = fit.typical & np.isfinite(fit.statistics.own_cosine)
    if not typical.any():
        raise ValueError("no class has two images that are near each other: this model cannot clean this set")
    own_cosine = fit.statistics.own_cosine[typical]
    lead = own_cosine - nearest_other.best[typical]
    return Limits(
        far=fit.far,
        near=float(np.quantile(own_cosine, shares["near"])),
        sure=max(0.0, float(np.quantile(lead, shares["sure"]))),
        # Without a class of four images, or without altered copies, the limit is infinite and the rule finds nothing.
        split=float(np.quantile(fit.half_gaps, shares["split"])) if len(fit.half_gaps) else -np.inf,
        duplicate=float(np.quantile(copies, shares["copy"])) if len(copies) else np.inf,
        person=float(np.quantile(own_cosine, shares["person"])),
    )


class Changes:
    """What becomes of every image. The last rule that applies to an image determines the reason.

    Args:
        rows: (N,) int64, the class row of each image in the old set.

    Attributes:
        new_rows: (N,) int64, the class row of each image in the new set, REMOVED for a removed image.
        reasons: (N,) uint8, a key of REASONS; 0 for an unchanged image.
        near: (N,) float32, cosine to ``other``; NaN without one.
        other: (N,) int64, what the image is near: a class row, an image's position, or a test image's number.
        merged: (C,) int64, the class row into which each class is merged; its own row without a merge.
    """

    def __init__(self, rows: np.ndarray):
        self.new_rows = rows.copy()
        self.reasons = np.zeros(len(rows), np.uint8)
        self.near = np.full(len(rows), np.nan, np.float32)
        self.other = np.full(len(rows), -1)
        self.merged = np.arange(rows.max() + 1)

    def remove_unreadable(self, unreadable: np.ndarray) -> None:
        """Removes images (N,) bool."""
        self.new_rows[unreadable], self.reasons[unreadable] = REMOVED, UNREADABLE

    def correct_labels(self, own_cosine: np.ndarray, nearest_other: Nearest, limits: Limits, relabel: bool) -> None:
        """Moves images with wrong labels to their classes; removes those of unknown class, or all without ``relabel``.

        ``own_cosine``: (N,) cosines to the other images of the class; NaN for the only image of a class, which stays.
        """
        images = np.flatnonzero(
            (own_cosine < limits.far) & (nearest_other.best >= limits.near) & (nearest_other.best > own_cosine)
        )
        is_known = relabel & (nearest_other.best[images] - nearest_other.second[images] >= limits.sure)
        rows = np.where(is_known, nearest_other.center[images], REMOVED)
        self._set(images, rows, WRONG, nearest_other.best[images], nearest_other.center[images])

    def merge_classes(self, groups: Iterable[Sequence[int]], sizes: np.ndarray, centers: np.ndarray) -> None:
        """Merges the classes of each group into the one with the most images, by ``sizes`` (C,)."""
        for group in groups:
            self.merged[list(group)] = max(group, key=lambda row: (sizes[row], -row))
        moved = np.flatnonzero((self.new_rows >= 0) & (self.merged[self.new_rows] != self.new_rows))
        before, after = self.new_rows[moved], self.merged[self.new_rows[moved]]
        cosine = np.einsum("ne,ne->n", centers[before], centers[after])
        self.new_rows[moved] = after
        is_first = self.reasons[moved] == 0  # a wrong label stays the reason of its image
        self._set(moved[is_first], after[is_first], SPLIT, cosine[is_first], after[is_first])

    def remove_duplicates(self, images: np.ndarray, kept: np.ndarray, cosines: np.ndarray) -> None:
        """Removes near-duplicates (D,); ``kept`` are the images that stay instead."""
        self._set(images, REMOVED, DUPLICATE, cosines, kept)

    def remove_tests(self, nearest_tests: Nearest, nearest_classes: Nearest, limits: Limits) -> None:
        """Removes test images and test persons.

        Args:
            nearest_tests: the nearest test image of each of the N images.
            nearest_classes: the nearest class row of each of the T test images.
            limits: the limits of the rules.
        """
        row, cosine, second = nearest_classes
        tests = np.flatnonzero((cosine >= limits.person) & (cosine - second >= limits.sure))
        tests = tests[np.argsort(-cosine[tests], kind="stable")][::-1]  # the nearest one overwrites the others
        test_of = np.full(len(self.merged), -1)
        test_of[row[tests]] = tests
        images = np.flatnonzero((self.new_rows >= 0) & (test_of[self.new_rows] >= 0))
        tests = test_of[self.new_rows[images]]
        self._set(images, REMOVED, TEST_PERSON, cosine[tests], tests)
        images = np.flatnonzero(nearest_tests.best >= limits.duplicate)
        self._set(images, REMOVED, TEST_IMAGE, nearest_tests.best[images], nearest_tests.center[images])

    def _set(self, images: np.ndarray, rows, reason: int, near: np.ndarray, other: np.ndarray) -> None:
        self.new_rows[images], self.reasons[images] = rows, reason
        self.near[images], self.other[images] = near, other
