"""Batches of a set: who reads what, with which pixels, and what is said where that cannot be."""

import cv2
import numpy as np
import pytest

from partial_fc.face_batches import FaceBatches
from partial_fc.face_records import write_face_set

SIZE = (16, 12)
COUNTS = [4, 1, 3, 2, 6, 1, 5]  # images of each identity: 22 in all


def picture(label, number):
    """A picture that tells who it is: the identity in red, the number in green, a left-right ramp in blue."""
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
    """Images and labels of the whole epoch in global order, put together from all ranks."""
    ranks = [FaceBatches(rec, batch_size, SIZE, rank=rank, size=size, **settings) for rank in range(size)]
    assert len({rank.batches for rank in ranks}) == 1
    batches = [rank.batch(epoch, number) for number in range(ranks[0].batches) for rank in ranks]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def test_images_and_labels_belong_together(rec):
    images, labels = read_epoch(rec, 0, 4, 1, shuffle=True)
    assert images.shape == (20, *SIZE, 3) and images.dtype == np.uint8 and labels.dtype == np.int64
    for image, label in zip(images, labels):
        assert (image == picture(label, image[0, 0, 1] // 20)).all()


def test_an_epoch_has_every_image_once(rec):
    images, labels = read_epoch(rec, 0, 11, 1, shuffle=True)
    assert sorted(labels.tolist()) == np.repeat(np.arange(7), COUNTS).tolist()
    assert len({(image[0, 0, 0], image[0, 0, 1]) for image in images}) == 22


def test_unshuffled_order_is_that_of_the_file(rec):
    _, labels = read_epoch(rec, 3, 11, 2)
    assert labels.tolist() == np.repeat(np.arange(7), COUNTS).tolist()


@pytest.mark.parametrize("batch_size, size", [(6, 2), (4, 3), (2, 6)])
def test_the_number_of_ranks_changes_no_pixel(rec, batch_size, size):
    settings = dict(shuffle=True, rand_mirror=True, cutoff=6, color_jittering=0.3, seed=5)
    for epoch in (0, 1):
        one, many = read_epoch(rec, epoch, 12, 1, **settings), read_epoch(rec, epoch, batch_size, size, **settings)
        assert (one[0] == many[0]).all() and (one[1] == many[1]).all()


def test_seed_and_epoch_change_order_and_mirrors(rec):
    def run(epoch, **settings):
        images, labels = read_epoch(rec, epoch, 11, 1, rand_mirror=True, **settings)
        return labels.tolist(), (images[:, 0, 0, 2] > 0).tolist()

    order, mirrors = run(0, shuffle=True)
    assert (order, mirrors) == run(0, shuffle=True)
    assert 3 < sum(mirrors) < 19
    assert order != run(1, shuffle=True)[0] and order != run(0, shuffle=True, seed=1)[0]
    assert run(0)[1] != run(1)[1] and run(0)[1] != run(0, seed=1)[1]


def test_a_batch_does_not_depend_on_what_was_read_before(rec):
    faces = FaceBatches(rec, 5, SIZE, shuffle=True, rand_mirror=True)
    visits = [(0, 0), (1, 2), (0, 3), (1, 0)]
    for epoch, number in visits:
        images, labels = faces.batch(epoch, number)
        fresh = FaceBatches(rec, 5, SIZE, shuffle=True, rand_mirror=True).batch(epoch, number)
        assert (images == fresh[0]).all() and (labels == fresh[1]).all()


def test_images_filter_leaves_out_small_identities_and_keeps_class_labels(rec):
    _, labels = read_epoch(rec, 0, 1, 1, images_filter=3)
    assert labels.tolist() == [0] * 4 + [2] * 3 + [4] * 6 + [6] * 5
    with pytest.raises(ValueError, match="no identity has 7 images, the largest has 6"):
        FaceBatches(rec, 1, SIZE, images_filter=7)


@pytest.mark.parametrize(
    "settings, what",
    [
        (dict(batch_size=0), "batch_size must be at least 1"),
        (dict(batch_size=8, size=3), "batch_size 8 on 3 ranks needs 24 images, there are 22"),
        (dict(image_size=(112, 112)), "train.rec holds images of 16x12 .*not 112x112"),
        (dict(image_size=(0, 12)), "height and a width"),
        (dict(cutoff=-1), "cutoff must be >= 0"),
        (dict(color_jittering=1.5), r"color_jittering in \[0, 1\]"),
        (dict(rank=2, size=2), "rank 2 does not exist among 2 ranks"),
        (dict(seed=-1), "seed must be >= 0"),
    ],
)
def test_what_cannot_be_is_refused(rec, settings, what):
    with pytest.raises(ValueError, match=what):
        FaceBatches(rec, **{"batch_size": 4, "image_size": SIZE, **settings})


@pytest.mark.parametrize(
    "content, what",
    [
        (b"no image", r"train.rec: image with key 6 cannot be decoded \(8 bytes\)"),
        (b"", r"train.rec: image with key 6 cannot be decoded \(0 bytes\)"),
        (encode(np.zeros((8, 9, 3), np.uint8)), "train.rec: image with key 6 has 8x9 pixels instead of 16x12"),
    ],
)
def test_a_damaged_image_is_named(tmp_path, content, what):
    people = identities()
    people[2][0] = content
    write_face_set(str(tmp_path), people, SIZE)
    faces = FaceBatches(str(tmp_path / "train.rec"), 4, SIZE)
    faces.batch(0, 0)
    with pytest.raises(ValueError, match=what):
        faces.batch(0, 1)
