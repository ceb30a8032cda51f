"""Batches of a face set: order, pixels and errors."""

from itertools import combinations

import cv2
import numpy as np
import pytest

from face_sets import face_batches
from partial_fc.data.face_records import write_face_set
from partial_fc.data.transforms import Augmentation

SIZE = (16, 12)
COUNTS = [4, 1, 3, 2, 6, 1, 5]  # images of each identity: 22 in all


def picture(label, number):
    """A picture that identifies itself: identity in red, number in green, and a left-right ramp in blue."""
    image = np.empty((*SIZE, 3), np.uint8)
    image[..., 0], image[..., 1], image[..., 2] = 10 * label, 20 * number, 20 * np.arange(SIZE[1])
    return image


def encode(image):
    return cv2.imencode(".png", image[..., ::-1])[1].tobytes()


def identities():
    return [[encode(picture(label, number)) for number in range(count)] for label, count in enumerate(COUNTS)]


@pytest.fixture
def rec(tmp_path):
    write_face_set(str(tmp_path), identities(), SIZE)
    return str(tmp_path / "train.rec")


def read_epoch(rec, epoch, batch_size, size, **settings):
    """Images and labels of an epoch in global order, from the batches of all ranks."""
    ranks = [face_batches(rec, batch_size, SIZE, rank=rank, size=size, **settings) for rank in range(size)]
    last = ranks[0].num_images - batch_size * size
    batches = [rank.batch(epoch, place) for place in range(0, last + 1, batch_size * size) for rank in ranks]
    images = np.concatenate([images for images, _ in batches]).transpose(0, 2, 3, 1)
    return images, np.concatenate([labels for _, labels in batches])


def test_an_epoch_has_every_image_once_with_its_label(rec):
    images, labels = read_epoch(rec, 0, 11, 1, shuffle=True)
    assert images.shape == (22, *SIZE, 3) and images.dtype == np.uint8 and labels.dtype == np.int64
    for image, label in zip(images, labels):
        assert (image == picture(label, image[0, 0, 1] // 20)).all()
    assert len({(image[0, 0, 0], image[0, 0, 1]) for image in images}) == 22


@pytest.mark.parametrize("batch_size, size", [(6, 2), (4, 3), (2, 6)])
def test_pixels_do_not_depend_on_the_number_of_ranks(rec, batch_size, size):
    settings = dict(shuffle=True, augmentation=Augmentation(True, 6, 0.3, 10), seed=5)
    for epoch in (0, 1):
        one, many = read_epoch(rec, epoch, 12, 1, **settings), read_epoch(rec, epoch, batch_size, size, **settings)
        assert (one[0] == many[0]).all() and (one[1] == many[1]).all()


def test_seed_and_epoch_change_order_and_mirrors(rec):
    def run(epoch, **settings):
        images, labels = read_epoch(rec, epoch, 11, 1, augmentation=Augmentation(rand_mirror=True), **settings)
        return labels.tolist(), (images[:, 0, 0, 2] > 0).tolist()

    order, mirrors = run(0, shuffle=True)
    assert (order, mirrors) == run(0, shuffle=True)
    assert 3 < sum(mirrors) < 19
    assert order != run(1, shuffle=True)[0] and order != run(0, shuffle=True, seed=1)[0]
    assert run(0)[1] != run(1)[1] and run(0)[1] != run(0, seed=1)[1]


def test_a_label_above_the_number_of_classes_is_named(rec):
    face_batches(rec, 2, SIZE).check_labels(7)
    with pytest.raises(ValueError, match=r"train.rec: image with key 18 at offset \d+ has label 6, .* has 6 classes"):
        face_batches(rec, 2, SIZE).check_labels(6)


def test_the_order_names_all_that_it_depends_on_and_nothing_else(rec, tmp_path):
    write_face_set(str(tmp_path / "other"), identities()[::-1], SIZE)
    changes = [{}, {"shuffle": True}, {"seed": 1}, {"min_images_per_class": 2}, {"min_images_per_class": 1}]
    orders = [face_batches(rec, 2, SIZE, **change).order for change in changes]
    orders.append(face_batches(str(tmp_path / "other" / "train.rec"), 2, SIZE).order)
    assert all(one != other for one, other in combinations(orders, 2)) and orders[3]["num_images"] == 20
    for change in ({"rank": 1, "size": 2}, {"skip_bad_images": 1}, {"augmentation": Augmentation(True)}):
        assert face_batches(rec, 3, SIZE, **change).order == orders[0]


def test_images_filter_leaves_out_small_identities_and_keeps_class_labels(rec):
    _, labels = read_epoch(rec, 0, 1, 1, min_images_per_class=3)
    assert labels.tolist() == [0] * 4 + [2] * 3 + [4] * 6 + [6] * 5


@pytest.mark.parametrize(
    "settings, what",
    [
        (dict(image_size=(112, 112)), "train.rec has images of 16x12 .*expected 112x112"),
        *((dict(image_size=size), "height, width") for size in ((0, 12), (16, 12, 3))),
        (dict(augmentation=Augmentation(cutout=-1)), "cutout .* got -1"),
        (dict(augmentation=Augmentation(color_jittering=1.5)), "color_jittering .* got 1.5"),
        (dict(augmentation=Augmentation(jpeg_compression=101)), "jpeg_compression .* got 101"),
        (dict(min_images_per_class=7), "no identity has 7 images, the largest has 6"),
    ],
)
def test_invalid_arguments_are_refused(rec, settings, what):
    with pytest.raises(ValueError, match=what):
        face_batches(rec, **{"batch_size": 4, "image_size": SIZE, **settings})


JPEG = cv2.imencode(".jpg", picture(1, 1))[1].tobytes()
BAD = [
    (b"no image", "cannot be decoded"),
    (b"", "cannot be decoded"),
    (JPEG[: len(JPEG) // 2], "is truncated"),
    (encode(np.zeros((8, 9, 3), np.uint8)), "has 8x9 pixels instead of 16x12"),
    (cv2.imencode(".jpg", np.zeros(SIZE, np.uint8))[1].tobytes(), "has 1 channel"),
    (cv2.imencode(".png", np.zeros((*SIZE, 4), np.uint8))[1].tobytes(), "has 4 channels"),
]


@pytest.mark.parametrize("content, what", BAD)
def test_a_damaged_image_is_named(tmp_path, content, what):
    people = identities()
    people[2][0] = content
    write_face_set(str(tmp_path), people, SIZE)
    faces = face_batches(str(tmp_path / "train.rec"), 4, SIZE)
    faces.batch(0, 0)
    with pytest.raises(ValueError, match=r"train.rec: image with key 6 at offset \d+ " + what + ".*skip_bad_images=1"):
        faces.batch(0, 4)


def test_bad_images_may_be_skipped_up_to_a_number(tmp_path, caplog):
    people = identities()
    people[0][3] = people[2][0] = people[5][0] = b"no image"  # keys 4, 6, 17
    write_face_set(str(tmp_path), people, SIZE)
    faces = face_batches(str(tmp_path / "train.rec"), 4, SIZE, skip_bad_images=2)
    for _ in range(2):  # an image counts once, however often it is read
        first, second = faces.batch(0, 0), faces.batch(0, 4)
        assert first[1].tolist() == [0, 0, 0, 1] and second[1].tolist() == [1, 2, 2, 2]
        assert (second[0][1] == picture(2, 1).transpose(2, 0, 1)).all()  # replaced by the following image
    assert len(faces.log.bad) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "skipped, bad item 1 of at most 2: " in caplog.text and "image with key 6 at offset" in caplog.text
    with pytest.raises(ValueError, match="key 17 .*skip_bad_images=2, 2 were skipped before"):
        faces.batch(0, 16)
    for read in (
        faces,
        face_batches(str(tmp_path / "train.rec"), 4, SIZE, skip_bad_images=2),
    ):  # as for the images of a class
        images, good = read.read(np.array([5, 6, 3]))
        assert good.tolist() == [False, True, False] and len(read.log.bad) == 2
        assert (images == picture(2, 1).transpose(2, 0, 1)).all() and images.shape == (1, 3, *SIZE)
        with pytest.raises(ValueError, match="key 17 .*skip_bad_images=2, 2 were skipped before"):
            read.read(np.array([0, 16]))


def test_a_set_without_a_good_image_ends_with_an_error(tmp_path):
    write_face_set(str(tmp_path), [[b"garbage"] * 3, [b"more"] * 2], SIZE)
    faces = face_batches(str(tmp_path / "train.rec"), 2, SIZE, skip_bad_images=100)
    for _ in range(2):
        with pytest.raises(ValueError, match="key [15] at offset .* no other item can be used either"):
            faces.batch(0, 0)
    with pytest.raises(ValueError, match="key 1 at offset .* cannot be decoded"):
        faces.sample(1)


def test_augmentation_does_not_depend_on_the_place(rec):
    """With a filter or another order, an image has another place, but the same augmentation."""
    settings = dict(augmentation=Augmentation(True, 6), seed=2)
    plain, labels = read_epoch(rec, 0, 1, 1, **settings)
    filtered, _ = read_epoch(rec, 0, 1, 1, min_images_per_class=3, **settings)
    kept = np.isin(labels, [0, 2, 4, 6])
    assert (plain[kept] == filtered).all()
    shuffled, _ = read_epoch(rec, 0, 1, 1, shuffle=True, **settings)
    assert sorted(image.tobytes() for image in shuffled) == sorted(image.tobytes() for image in plain)


def test_counters_add_up(rec):
    faces = face_batches(rec, 11, SIZE)
    faces.batch(0, 0)
    faces.batch(0, 11)
    counted = faces.log.counters
    stored = sum(len(image) for person in identities() for image in person)
    assert (counted.images, counted.bytes) == (22, stored)
    assert 0 < counted.read_seconds < counted.busy_seconds < 5
