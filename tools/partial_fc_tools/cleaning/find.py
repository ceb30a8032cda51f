"""Applies all rules to a set.

Shapes: N images, C classes, T test images.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.evaluation.collapse import MIN_DIMENSIONS
from partial_fc.utils.memory import free_memory
from partial_fc.utils.progress import progress
from partial_fc.utils.text import plural

from .centers import Classes, Fit, fit, share_above
from .changes import DUPLICATE, REASONS, REMOVED, TEST_IMAGE, TEST_PERSON, UNREADABLE, WRONG, Changes
from .duplicates import near_duplicates
from .embeddings import Images
from .limits import Limits, limits_of
from .nearest import Nearest, Work, nearest
from .overlap import overlap
from .shares import Shares
from .split_classes import groups, split_pairs
from .stored import Stored, open_test, saved
from .wrong_labels import WrongLabels, wrong_labels

MIN_SEPARATION = 0.6  # that of a set in which four of five labels are wrong; 0.5 is chance
MIN_NEARER = 0.9  # of copies: 0.96 and more where a cone cost no image of a set without errors, 0.76 where it cost 40 %


class Found(NamedTuple):
    """All that was found in a set."""

    classes: Classes  # of the set
    fit: Fit  # its centers
    other: Nearest  # the nearest other class of each image
    limits: Limits  # of the decisions
    copies: np.ndarray  # cosines of some images to their altered copies
    changes: Changes  # of the images
    groups: list[list[int]]  # of classes that were merged
    tests: Sequence[Images]  # the test sets

    def test(self, number: int) -> tuple[Images, int]:
        """Returns the test set of a test image, and its number there."""
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
        reasons, removed = self.changes.reasons, self.changes.classes == REMOVED
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


def find(records: FaceRecords, work: str, args: argparse.Namespace) -> Found:
    """Finds what is to change in a set.

    Raises:
        OSError, ValueError: a file cannot be read or written, or the model fails or does not separate the classes.
    """
    shares = Shares(*(getattr(args, f"{name}_share") for name in Shares._fields))
    tests = [open_test(path) for path in args.against]
    stored = Stored(records, tests, work, args)
    memory = args.memory_mb * 1_000_000 if args.memory_mb else free_memory() // 4
    classes = Classes.of(records.labels(np.arange(records.num_images)))
    found = fit(stored.images, classes, shares.far, memory)
    _check_model(found, stored.copies, args.model)
    changes = Changes.none(classes.rows)
    changes.add_unreadable(~np.asarray(stored.images).any(axis=1))
    with saved(work, centers=found.figures.centers, own=classes.rows) as paths:
        with progress(records.num_images, "image", "comparing with classes") as bar:
            other = nearest(stored.path, paths["centers"], paths["own"], Work(memory, args.workers, bar))
        limits = limits_of(found, other, stored.copies, shares)
        if args.wrong != "keep":
            changes.add_wrong_labels(_wrong(found.figures.own, other, limits, args.wrong), other)
        merged: list[list[int]] = []
        if args.split == "merge":
            with progress(len(classes.names), "class", "comparing classes") as bar:
                work_of_pairs = Work(memory, args.workers, bar)
                merged = groups(split_pairs(paths["centers"], found.figures, limits.split, work_of_pairs))
            changes.add_split_classes(merged, np.diff(classes.bounds), found.figures.centers)
        if args.duplicates == "remove":
            with progress(int((changes.classes >= 0).sum()), "image", "finding near-duplicates") as bar:
                changes.add_duplicates(near_duplicates(stored.images, changes.classes, limits.duplicate, memory, bar))
        if tests:
            _leave_out_tests(changes, stored, found.figures.centers, limits, work, Work(memory, args.workers, None))
    return Found(classes, found, other, limits, stored.copies, changes, merged, tests)


def _check_model(found: Fit, copies: np.ndarray, model: str) -> None:
    """Raises ValueError for a model that does not separate the classes of this set, or has collapsed.

    All embeddings of a collapsed model are so near to each other that images of a class are as near as copies of one. A
    cone in which copies are clearly nearer is no obstacle, as no limit is fixed.
    """
    # Dimensions follow from cosines between images, which are those to a center times the length of its mean.
    share = found.figures.share[np.isfinite(found.figures.share)]
    squares = np.square(found.between * (share.mean() if len(share) else 1))
    dimensions = 1 / (float(squares.mean()) or np.finfo(np.float64).tiny)
    nearer = share_above(copies, found.figures.own[np.isfinite(found.figures.own)])
    if not (found.separation >= MIN_SEPARATION and (dimensions >= MIN_DIMENSIONS or nearer >= MIN_NEARER)):
        raise ValueError(
            f"{model} cannot clean this set: an image is nearer to its class than to another one in "
            f"{found.separation:.0%} of comparisons (expected: at least {MIN_SEPARATION:.0%}), the embeddings span "
            f"{dimensions:.1f} dimensions (expected: {MIN_DIMENSIONS:g}), and altered copies of an image are nearer to "
            f"it than its class in {nearer:.0%} (expected: {MIN_NEARER:.0%}): use another model"
        )


def _wrong(own: np.ndarray, other: Nearest, limits: Limits, action: str) -> WrongLabels:
    found = wrong_labels(own, other, limits)
    return found if action == "relabel" else found._replace(classes=np.full_like(found.classes, REMOVED))


def _leave_out_tests(
    changes: Changes, stored: Stored, centers: np.ndarray, limits: Limits, folder: str, work: Work
) -> None:
    tests = np.concatenate(stored.tests).astype(np.float32)
    persons = np.unique(changes.merged)  # a second center of one person would be as near to a test image
    with saved(folder, tests=tests, persons=centers[persons]) as paths:
        with progress(len(stored.images) + len(tests), "image", "comparing with test sets") as bar:
            work = work._replace(bar=bar)
            of_images = nearest(stored.path, paths["tests"], None, work)
            of_tests = nearest(paths["tests"], paths["persons"], None, work)
    of_tests = of_tests._replace(center=persons[of_tests.center])
    changes.add_overlap(overlap(of_images, of_tests, limits), of_images, of_tests)
