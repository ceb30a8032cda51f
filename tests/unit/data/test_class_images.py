"""The images of a set by class: positions and pixels."""

import cv2
import numpy as np
import pytest

from face_sets import face_batches, jpeg, overwrite, write_records
from partial_fc.data.class_images import ClassImages
from partial_fc.data.transforms import Augmentation

LABELS = [2, 2, 0, 5, 5, 2, 0, 5, 3, 5]  # im2rec writes labels in any order; some classes are missing


@pytest.fixture
def rec(tmp_path):
    return write_records(tmp_path, {key: (float(label), key, 0, jpeg(key)) for key, label in enumerate(LABELS)})


def images_of(rec, **arguments):
    faces = face_batches(rec, 2, (16, 16), shuffle=True, augmentation=Augmentation(rand_mirror=True), **arguments)
    return faces, ClassImages(faces, threads=2)


def damage(rec, faces, position):
    overwrite(rec, int(faces.items.records._index.offsets[position]) + 32, b"no image")  # after both headers


@pytest.mark.parametrize("least, kept", [(0, {0, 2, 3, 5}), (3, {2, 5})])
def test_the_images_of_classes(rec, least, kept):
    _, images = images_of(rec, min_images_per_class=least)
    for classes in ([0, 1, 2, 3, 4, 5], [2, 4], [1], [7, 9], []):
        classes = np.array(classes, np.int64)
        positions, places = images.of(classes)
        items = list(enumerate(label for label in LABELS if label in kept))
        wanted = [(place, item) for place, c in enumerate(classes) for item, label in items if c == label]
        assert sorted(zip(places.tolist(), positions.tolist())) == wanted
        assert places.tolist() == sorted(places)


def test_batches_are_the_images_as_they_are(rec):
    faces, images = images_of(rec, skip_bad_images=1)
    position = 4
    damage(rec, faces, position)
    batches = list(images.batches(np.arange(10), 4))
    good = np.concatenate([good for _, good in batches])
    assert [len(good) for _, good in batches] == [4, 4, 2] and good.tolist() == [i != position for i in range(10)]
    pixels = np.concatenate([pixels for pixels, _ in batches])
    expected = [cv2.imdecode(np.frombuffer(jpeg(i), np.uint8), 1)[:, :, ::-1] for i in range(10) if i != position]
    np.testing.assert_array_equal(pixels.transpose(0, 2, 3, 1), expected)
    np.testing.assert_array_equal(faces.sample(10), pixels)
    assert set(faces.log.bad) == {position}
    list(images.batches(np.array([position]), 4))  # counted once
