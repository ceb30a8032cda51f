"""Applies all rules to a set.

Shapes: N images, C classes, K images with altered copies, T test images.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.evaluation.collapse import MIN_DIMENSIONS
from partial_fc.utils.memory import free_memory
from partial_fc.utils.text import plural

from .centers import Classes, Fit, fit, share_above
from .changes import DUPLICATE, REASONS, REMOVED, TEST_IMAGE, TEST_PERSON, UNREADABLE, WRONG, Changes, Limits, limits_of
from .duplicates import near_duplicates
from .embeddings import Images
from .nearest import Nearest, Work, nearest
from .split_classes import groups, split_pairs
from .stored import open_test, saved, stored_embeddings

MIN_SEPARATION = 0.6  # measured for a set in which four of five labels are wrong; 0.5 is chance
# Share of copies that are nearer than the class. With models whose embeddings form a cone, on a set without errors,
# it was 0.96 and more where cleaning removed no image, 0.76 where it removed 40 %.
MIN_NEARER = 0.9


class Findings(NamedTuple):
    """The changes of a set, and the statistics behind them."""

    classes: Classes  # of the old set
    fit: Fit
    nearest_other: Nearest  # the nearest other class of each image
    limits: Limits
    copies: np.ndarray  # (K,) cosines of images to their altered copies
    changes: Changes
    groups: list[list[int]]  # merged classes
    tests: Sequence[Images]

    def test(self, number: int) -> tuple[Images, int]:
        """Returns the test set of a test image, and the image's number there."""
        for test in self.tests:
            if number < test.length:
                return test, number
            number -= test.length
        raise IndexError(number)

    def test_name(self, number: int) -> str:
        """Returns the name of a test image."""
        test, inside = self.test(number)
        return f"{test.name} {inside}"

    def summary(self) -> Iterator[tuple[str, str]]:
        """Yields the name and the counts of each kind of change."""
        reasons, removed = self.changes.reasons, self.changes.new_rows == REMOVED
        wrong, persons = reasons == WRONG, reasons == TEST_PERSON
        yield "wrong labels", f"{wrong.sum():,} images, of which {(wrong & removed).sum():,} are left out"
        merged = plural(sum(map(len, self.groups)), "class", "classes")
        yield "split classes", f"{merged} merged into {len(self.groups):,}"
        yield "near-duplicates", f"{(reasons == DUPLICATE).sum():,} images left out"
        if self.tests:
            people = plural(len(np.unique(self.changes.other[persons])), "person")
            copies = plural(int((reasons == TEST_IMAGE).sum()), "near-duplicate")
            yield "in test sets", f"{people} with {persons.sum():,} images left out; {copies} of test images"
        if (reasons == UNREADABLE).any():
            yield REASONS[UNREADABLE], f"{(reasons == UNREADABLE).sum():,} images left out"


def find_changes(
    records: FaceRecords, work_folder: str, shares: Mapping[str, float], args: argparse.Namespace
) -> Findings:
    """Decides what becomes of the images of a set.

    Raises:
        OSError, ValueError: a file cannot be read or written, or the model fails or does not separate the classes.
    """
    tests = [open_test(path) for path in args.against]
    stored = stored_embeddings(records, tests, work_folder, args)
    work = Work(args.memory_mb * 1_000_000 if args.memory_mb else free_memory() // 4, args.workers)
    classes = Classes.of(records.labels(np.arange(records.num_images)))
    fitted = fit(stored.images, classes, shares["far"], work.memory)
    check_model(fitted, stored.copies, args.model)
    centers = fitted.statistics.centers
    changes = Changes(classes.class_of)
    changes.remove_unreadable(~np.asarray(stored.images).any(axis=1))
    merged: list[list[int]] = []
    with saved(work_folder, centers=centers, rows=classes.class_of) as paths:
        nearest_other = nearest(stored.path, paths["centers"], paths["rows"], work, "comparing with classes")
        limits = limits_of(fitted, nearest_other, stored.copies, shares)
        if args.wrong != "keep":
            changes.correct_labels(fitted.statistics.own_cosine, nearest_other, limits, args.wrong == "relabel")
        if args.split == "merge":
            merged = groups(*split_pairs(paths["centers"], fitted.statistics, limits.split, work))
            changes.merge_classes(merged, np.diff(classes.bounds), centers)
    if args.duplicates == "remove":
        changes.remove_duplicates(*near_duplicates(stored.images, changes.new_rows, limits.duplicate, work.memory))
    if tests:
        # One center per person: two equally near centers of one person would both lack a lead.
        persons = np.unique(changes.merged)
        test_rows = np.concatenate(stored.tests).astype(np.float32)
        with saved(work_folder, tests=test_rows, persons=centers[persons]) as paths:
            nearest_tests = nearest(stored.path, paths["tests"], None, work, "comparing with test sets")
            nearest_classes = nearest(paths["tests"], paths["persons"], None, work, "comparing test sets with classes")
        changes.remove_tests(nearest_tests, nearest_classes._replace(center=persons[nearest_classes.center]), limits)
    return Findings(classes, fitted, nearest_other, limits, stored.copies, changes, merged, tests)


def check_model(fitted: Fit, copies: np.ndarray, model: str) -> None:
    """Raises ValueError for a model that does not separate the classes of this set, or has collapsed.

    The embeddings of a collapsed model are so near to each other that any two images of a class look like copies.
    Embeddings that form a cone are usable if copies are clearly nearer than the class: all limits are relative.
    """
    # Dimensions: 1 / mean squared cosine of two images, which is the cosine to a center times the length of the mean.
    lengths = fitted.statistics.mean_length[np.isfinite(fitted.statistics.mean_length)]
    squares = np.square(fitted.between * (lengths.mean() if len(lengths) else 1))
    dimensions = 1 / (float(squares.mean()) or np.finfo(np.float64).tiny)
    nearer = share_above(copies, fitted.statistics.own_cosine[np.isfinite(fitted.statistics.own_cosine)])
    if not (fitted.separation >= MIN_SEPARATION and (dimensions >= MIN_DIMENSIONS or nearer >= MIN_NEARER)):
        raise ValueError(
            f"{model} cannot clean this set: an image is nearer to its class than to another one in "
            f"{fitted.separation:.0%} of comparisons (expected: at least {MIN_SEPARATION:.0%}), the embeddings span "
            f"{dimensions:.1f} dimensions (expected: {MIN_DIMENSIONS:g}), and altered copies of an image are nearer to "
            f"it than its class in {nearer:.0%} of cases (expected: {MIN_NEARER:.0%}): use another model"
        )
