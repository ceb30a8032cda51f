"""The rules of `sets clean` and their tiles, against slow definitions, on small random embeddings."""

import numpy as np
import pytest

from face_sets import jpeg, write_records
from partial_fc.data.face_records import FaceRecords
from partial_fc.data.names import read_names, write_names
from partial_fc_tools.cleaning.centers import Classes, ClassStatistics, fit
from partial_fc_tools.cleaning.changes import (
    DUPLICATE,
    SPLIT,
    TEST_IMAGE,
    TEST_PERSON,
    UNREADABLE,
    WRONG,
    Changes,
    Limits,
    limits_of,
)
from partial_fc_tools.cleaning.duplicates import near_duplicates
from partial_fc_tools.cleaning.nearest import Nearest, Work, nearest, tile_side
from partial_fc_tools.cleaning.new_set import write_set
from partial_fc_tools.cleaning.split_classes import groups, split_pairs

LIMITS = Limits(far=0.3, near=0.5, sure=0.1, split=0.05, duplicate=0.9, person=0.7)
MEMORY = 1 << 20


def unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def people(labels, spread=0.6, size=16, seed=0):
    """(N, size) float32 of length 1: a random direction for each label, plus noise for each image."""
    random = np.random.default_rng(seed)
    directions = unit(random.normal(size=(labels.max() + 1, size)))
    return unit(directions[labels] + spread * unit(random.normal(size=(len(labels), size))))


def saved(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return [str(folder / f"{name}.npy") for name in arrays]


def slow_own(x, labels, typical, image):
    """Cosine of an image to the mean of the other typical images of its class."""
    others = [each for each in np.flatnonzero(labels == labels[image]) if typical[each] and each != image]
    return x[image] @ unit(x[others].astype(np.float64).sum(axis=0)) if others else np.nan


# A tile of one number, several that divide nothing, and one that holds all.
@pytest.mark.parametrize("memory, workers", [(1, 1), (3000, 1), (MEMORY, 1), (6000, 2)])
@pytest.mark.parametrize("excluding", [True, False])
def test_the_nearest_center_does_not_depend_on_tiles(tmp_path, memory, workers, excluding):
    labels = np.arange(53) % 17
    x, centers = people(labels).astype(np.float16), people(np.arange(17), seed=1)
    centers[3] = centers[9]  # equal cosines
    rows, targets, excluded = saved(tmp_path, x=x, centers=centers, labels=labels)
    found = nearest(rows, targets, excluded if excluding else None, Work(memory, workers), "")
    cosines = x.astype(np.float32) @ centers.T
    if excluding:
        cosines[np.arange(53), labels] = -2
    order = np.argsort(-cosines, axis=1, kind="stable")
    # BLAS may sum a tile in another order.
    assert (np.where(found.center == 9, 3, found.center) == np.where(order[:, 0] == 9, 3, order[:, 0])).all()
    np.testing.assert_allclose(found.best, np.sort(cosines)[:, -1], atol=1e-6)
    np.testing.assert_allclose(found.second, np.sort(cosines)[:, -2], atol=1e-6)


@pytest.mark.parametrize("size", [16, 512])
def test_a_tile_fits_into_the_memory_and_uses_most_of_it(size):
    for memory in (50_000, 5_000_000):
        side = tile_side(memory, size)
        assert 4 * (2 * side**2 + 2 * side * size) <= memory < 4 * (2 * (side + 1) ** 2 + 2 * (side + 1) * size)
    assert tile_side(0, size) == 1 and tile_side(1 << 50, size) == 4096


@pytest.mark.parametrize("memory", [1, 20_000, MEMORY])
def test_centers_are_the_means_of_typical_images(memory):
    labels = np.random.default_rng(3).permutation(np.repeat([0, 2, 3, 7, 8], [6, 1, 9, 8, 5]))
    x = people(labels)
    x[np.flatnonzero(labels == 3)[4]] = people(np.array([7]))[0]  # a wrong label
    x[np.flatnonzero(labels == 8)[0]] = 0  # an image that cannot be decoded
    classes = Classes.of(labels)
    found = fit(x, classes, 0.05, memory)
    assert classes.labels.tolist() == [0, 2, 3, 7, 8]
    assert not found.typical[np.flatnonzero(labels == 3)[4]] and not found.typical[np.flatnonzero(labels == 8)[0]]
    own = [slow_own(x, labels, found.typical, image) for image in range(len(x))]
    np.testing.assert_allclose(found.statistics.own_cosine, own, atol=1e-6)
    for row, name in enumerate(classes.labels):
        images = np.flatnonzero((labels == name) & found.typical)
        if len(images):
            np.testing.assert_allclose(found.statistics.centers[row], unit(x[images].sum(axis=0)), atol=1e-6)
            np.testing.assert_allclose(
                found.statistics.mean_length[row], np.linalg.norm(x[images].mean(axis=0)), atol=1e-6
            )
        if len(images) > 1:
            np.testing.assert_allclose(
                found.statistics.mean_own_cosine[row], np.mean([own[each] for each in images]), atol=1e-6
            )
        else:
            assert np.isnan(found.statistics.mean_own_cosine[row])
    assert len(found.half_gaps) == 4


def test_an_image_that_cannot_be_decoded_counts_in_no_comparison():
    labels = np.repeat(np.arange(6), 5)
    x = people(labels, spread=2)
    expected = fit(x, Classes.of(labels), 0.05, MEMORY).separation
    assert 0.6 < expected < 0.99
    x = np.concatenate([x, np.zeros((30, 16), np.float32)])
    assert fit(x, Classes.of(np.tile(labels, 2)), 0.05, MEMORY).separation == expected


def test_limits_are_quantiles_of_the_typical_images():
    labels = np.repeat(np.arange(6), 10)
    x = people(labels)
    found = fit(x, Classes.of(labels), 0.02, MEMORY)
    other = Nearest(np.zeros(60, np.int64), np.full(60, 0.1, np.float32), np.zeros(60, np.float32))
    shares = {"near": 0.5, "sure": 0.5, "split": 0.25, "copy": 0.5, "person": 0.25}
    limits = limits_of(found, other, np.linspace(0.9, 1, 101), shares)
    own = found.statistics.own_cosine[found.typical]
    assert limits.far == found.far and limits.split == pytest.approx(np.quantile(found.half_gaps, 0.25))
    few = limits_of(found._replace(half_gaps=np.empty(0)), other, np.empty(0), shares)  # limits that nothing reaches
    assert (few.split, few.duplicate) == (-np.inf, np.inf)
    assert limits.near == pytest.approx(np.median(own)) and limits.sure == pytest.approx(np.median(own) - 0.1)
    assert limits.person == pytest.approx(np.quantile(own, 0.25)) and limits.duplicate == pytest.approx(0.95)


@pytest.mark.parametrize(
    "own, best, second, result",
    [
        (0.2, 0.6, 0.4, 5),  # far from its class, near class 5, which leads
        (0.2, 0.6, 0.55, -1),  # the next class is too close
        (0.2, 0.4, 0.1, None),  # near no class
        (0.35, 0.6, 0.1, None),  # not far from its class
        (np.nan, 0.9, 0.1, None),  # alone in its class
    ],
)
def test_wrong_labels(own, best, second, result):
    changes = Changes(np.array([3]))
    other = Nearest(np.array([5]), np.array([best]), np.array([second]))
    changes.correct_labels(np.array([own]), other, LIMITS, relabel=True)
    assert (changes.new_rows.tolist(), changes.reasons.tolist()) == (
        ([3], [0]) if result is None else ([result], [WRONG])
    )


def slow_gap(x, labels, found, one, other):
    """How much nearer typical images are to their own class, on average over both classes."""
    gaps = []
    for own, against in ((one, other), (other, one)):
        images = np.flatnonzero((labels == own) & found.typical)
        gaps.append(
            np.mean([slow_own(x, labels, found.typical, i) - x[i] @ found.statistics.centers[against] for i in images])
        )
    return np.mean(gaps)


@pytest.mark.parametrize("memory, workers", [(1, 1), (30_000, 1), (MEMORY, 2)])
def test_pairs_of_split_classes_have_a_small_gap(tmp_path, memory, workers):
    person = np.repeat(np.arange(8), 12)
    x = people(person, spread=0.9)
    labels = np.where((person == 2) & (np.arange(96) % 2 == 0), 8, person)  # half of person 2
    found = fit(x, Classes.of(labels), 0.02, MEMORY)
    (path,) = saved(tmp_path, centers=found.statistics.centers)
    pairs, gaps = split_pairs(path, found.statistics, 10.0, Work(memory, workers))
    assert sorted(map(tuple, pairs.tolist())) == [(i, j) for i in range(9) for j in range(i + 1, 9)]
    for (one, other), gap in zip(pairs, gaps):
        assert gap == pytest.approx(slow_gap(x, labels, found, one, other), abs=1e-5)
    limit = np.quantile(found.half_gaps, 0.98)
    assert split_pairs(path, found.statistics, limit, Work(memory, workers))[0].tolist() == [[2, 8]]


def test_a_class_with_one_typical_image_is_no_pair(tmp_path):
    statistics = ClassStatistics(
        people(np.array([0, 0])), np.ones(2, np.float32), np.float32([np.nan, 0.9]), np.empty(0)
    )
    (path,) = saved(tmp_path, centers=statistics.centers)
    assert not len(split_pairs(path, statistics, 10.0, Work(MEMORY, 1))[0])


def test_every_two_classes_of_a_group_are_a_pair():
    chain = np.array([[0, 1], [1, 2], [2, 3], [5, 9]]), np.array([0.03, 0.01, 0.02, 0.04])
    assert groups(*chain) == [[1, 2], [5, 9]]
    closed = np.array([[0, 1], [1, 2], [0, 2]]), np.array([0.03, 0.01, 0.02])
    assert groups(*closed) == [[0, 1, 2]]
    assert groups(np.empty((0, 2), np.int64), np.empty(0)) == []


@pytest.mark.parametrize("memory", [1, 5000, MEMORY])
def test_the_earliest_of_near_duplicates_stays(memory):
    labels = np.random.default_rng(4).permutation(np.repeat(np.arange(-1, 3), 15))
    x = people(labels + 1, spread=0.5).astype(np.float16)
    images, kept_for, _ = near_duplicates(x, labels, 0.9, memory)
    wide, kept, expected = x.astype(np.float32), [], {}
    for image in np.flatnonzero(labels >= 0):
        near = [k for k in kept if labels[k] == labels[image] and wide[k] @ wide[image] >= 0.9]
        if near:
            expected[image] = near[0]
        else:
            kept.append(image)
    assert len(expected) > 5
    assert dict(zip(images.tolist(), kept_for.tolist())) == expected


def test_images_and_persons_of_test_sets():
    changes = Changes(np.array([4, 6, 6]))
    nearest_tests = Nearest(np.array([4, 1, 0]), np.array([0.95, 0.89, 0.1]), np.zeros(3))
    # Test images 0 and 2 show class 6, and 2 is nearer; 1 is not certain, 3 not near.
    nearest_classes = Nearest(np.array([6, 4, 6, 4]), np.array([0.75, 0.8, 0.9, 0.6]), np.array([0.6, 0.75, 0.1, 0.1]))
    changes.remove_tests(nearest_tests, nearest_classes, LIMITS)
    assert changes.reasons.tolist() == [TEST_IMAGE, TEST_PERSON, TEST_PERSON]
    assert (changes.new_rows.tolist(), changes.other.tolist()) == ([-1, -1, -1], [4, 2, 2])


def test_a_new_set_has_the_names_and_labels_of_the_old_one(tmp_path):
    """Also if classes of the old set have no images."""
    labels = np.array([1, 3, 3, 6])
    records = {key: (label, key, 0, jpeg(key)) for key, label in enumerate(labels)}
    old = FaceRecords(write_records(str(tmp_path), records))
    write_names(tmp_path, [f"name {label}" for label in range(7)])
    (tmp_path / "new").mkdir()
    after = np.array([-1, 1, 1, 2])
    assert write_set(str(tmp_path / "new"), old, Classes.of(labels), after) == (3, 2)
    assert (tmp_path / "new" / "class_map.txt").read_text() == "3\n6\n"
    assert read_names(tmp_path / "new" / "train.rec", 2) == ["name 3", "name 6"]


def test_the_rules_follow_each_other():
    """A wrong label stays the reason of an image whose new class is merged; of two equal classes the first stays."""
    classes = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 4])
    own, best, second = np.full(10, 0.9), np.linspace(0.5, 0.95, 10, dtype=np.float32), np.zeros(10)
    own[[1, 5]], second[5] = 0, 0.9
    changes = Changes(classes)
    changes.remove_unreadable(np.arange(10) == 0)
    changes.correct_labels(own, Nearest(np.full(10, 2), best, second), LIMITS, relabel=True)
    centers = people(np.arange(5))
    changes.merge_classes([[2, 1]], np.bincount(classes), centers)
    changes.remove_duplicates(np.array([3]), np.array([2]), np.array([0.9]))
    nearest_tests = Nearest(np.full(10, 1), np.where(np.arange(10) == 4, 0.95, 0), second)
    changes.remove_tests(nearest_tests, Nearest(np.array([3, 0]), np.array([0.7, 0.6]), np.zeros(2)), LIMITS)
    assert classes.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 3, 4]
    assert changes.new_rows.tolist() == [-1, 1, 1, -1, -1, -1, 1, 1, -1, 4]
    reasons = [UNREADABLE, WRONG, 0, DUPLICATE, TEST_IMAGE, WRONG, SPLIT, SPLIT, TEST_PERSON, 0]
    assert changes.reasons.tolist() == reasons and changes.merged.tolist() == [0, 1, 1, 3, 4]
    assert changes.other.tolist() == [-1, 2, -1, 2, 1, 2, 1, 1, 0, -1]
    cosine = centers[2] @ centers[1]
    near = [np.nan, 0.55, np.nan, 0.9, 0.95, 0.75, cosine, cosine, 0.7, np.nan]
    np.testing.assert_allclose(changes.near, near, atol=1e-6)
