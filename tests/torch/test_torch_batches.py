"""Batches of tensors have the pixels and labels of the set, in its order; dummy batches."""

import cv2
import numpy as np
import pytest
import torch

from face_sets import face_batches
from partial_fc.data.face_records import write_face_set
from partial_fc.data.transforms import Augmentation
from partial_fc_torch.batches import dummy_tensors, tensor_data

SIZE, IDENTITIES, EACH, B = (8, 6), 7, 3, 4


@pytest.fixture
def rec(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IDENTITIES, EACH, *SIZE, 3), np.uint8)
    encoded = [[cv2.imencode(".png", image)[1].tobytes() for image in identity] for identity in images]
    write_face_set(str(tmp_path), encoded, SIZE)
    return str(tmp_path / "train.rec")


def batches_of(rec, **share):
    return face_batches(rec, B, SIZE, shuffle=True, augmentation=Augmentation(rand_mirror=True), seed=3, **share)


def data_of(rec, **share):
    return tensor_data(batches_of(rec, **share), threads=2, pinned=False)


def same(first, second):
    return torch.equal(first.inputs, second.inputs) and (first.labels == second.labels).all()


@pytest.mark.parametrize("rank, size", [(0, 1), (1, 2)])
def test_batches_are_those_of_the_set(rec, rank, size):
    data, faces = data_of(rec, rank=rank, size=size), batches_of(rec, rank=rank, size=size)
    batches = list(data)  # all at once, as reading a batch must not change earlier ones
    assert len(batches) == IDENTITIES * EACH // (B * size)
    for number, batch in enumerate(batches):
        images, labels = faces.batch(0, number * B * size)
        assert batch.inputs.dtype == torch.uint8 and batch.inputs.shape == (B, 3, *SIZE)
        np.testing.assert_array_equal(batch.inputs.numpy(), images)
        np.testing.assert_array_equal(batch.labels, labels)
    data.close()


def dummies(rank=0, seed=1, classes=10**8):
    pixels = np.random.default_rng((seed, rank)).integers(0, 256, (64, 3, 4, 4), np.uint8)
    return dummy_tensors(pixels, classes, seed, rank, False, 50)


def test_dummy_labels_spread_over_all_classes_and_differ_between_ranks():
    data = dummies()
    batches = list(data)
    labels = np.concatenate([batch.labels for batch in batches])
    assert len(batches) == 50 and labels.dtype == np.int64
    assert np.histogram(labels, 10, (0, 10**8))[0].min() > 200  # 320 expected in each tenth
    assert batches[0].inputs is batches[1].inputs and batches[0].inputs.dtype == torch.uint8
    assert batches[0].inputs.float().std() > 50
    assert not same(dummies(rank=1).next(), batches[0]) and not same(dummies(seed=2).next(), batches[0])
    data.reset()
    assert same(data.next(), batches[0])
