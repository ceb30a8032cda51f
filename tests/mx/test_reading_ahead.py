"""Reading ahead in FaceImageIter: the same batches with any number of threads, resuming, and no leaks."""

import gc
import os
import threading
import time

import cv2
import mxnet as mx
import numpy as np
import pytest

from partial_fc.data.face_records import write_face_set
from partial_fc_mxnet.image_iter import DummyIter, FaceImageIter
from partial_fc_mxnet.ops.memory import host_array
from waiting import happens

SHAPE = (3, 16, 12)
IDENTITIES, EACH = 10, 5  # 50 images


def picture(number):
    """Returns an encoded image of noise, with its number in the red channel of a corner."""
    image = np.random.default_rng(number).integers(0, 256, (*SHAPE[1:], 3)).astype(np.uint8)
    image[0, 0, 2] = number
    return cv2.imencode(".png", image)[1].tobytes()


@pytest.fixture
def rec(tmp_path):
    people = [[picture(EACH * label + number) for number in range(EACH)] for label in range(IDENTITIES)]
    write_face_set(str(tmp_path), people, SHAPE[1:])
    return str(tmp_path / "train.rec")


def following(data, batches):
    """Yields the next batches, across the ends of epochs."""
    for _ in range(batches):
        try:
            yield data.next()
        except StopIteration:
            data.reset()
            yield data.next()


def take(data, batches):
    """Returns (images, labels) of the next batches."""
    return [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in following(data, batches)]


def same(first, second):
    return len(first) == len(second) and all((a == b).all() for x, y in zip(first, second) for a, b in zip(x, y))


def all_augmentations(**settings):
    return dict(shuffle=True, rand_mirror=True, cutoff=4, color_jittering=0.2, jpeg_compression=30, seed=3, **settings)


@pytest.mark.parametrize("threads", [2, 7])
def test_batches_do_not_depend_on_the_number_of_threads(rec, threads):
    single, several = (FaceImageIter(4, SHAPE, rec, **all_augmentations(threads=count)) for count in (1, threads))
    assert (single.threads, several.threads) == (1, threads)
    assert same(take(single, 30), take(several, 30))


@pytest.mark.parametrize("batch, ranks", [(12, 1), (6, 2), (4, 3), (3, 2)])
def test_resuming_at_another_number_of_ranks_gives_the_same_images(rec, batch, ranks):
    """Reads two global batches of 12 on one rank, then the rest of the epoch on several ranks."""
    single = FaceImageIter(12, SHAPE, rec, threads=2, **all_augmentations())
    take(single, 2)
    state = single.state()
    order = {"data_set": single.digest, "num_images": 50, "shuffle": True, "seed": 3, "images_filter": 0}
    assert state == {"epoch": 0, "images": 24, **order}
    global_batch = batch * ranks
    parts = [
        FaceImageIter(batch, SHAPE, rec, context=rank, context_num=ranks, **all_augmentations())
        for rank in range(ranks)
    ]
    for part in parts:
        part.restore(state)
    steps = 24 // global_batch  # up to image 48 of the epoch, a multiple of both global batches
    joined = [np.concatenate(arrays) for arrays in zip(*(p for s in zip(*(take(q, steps) for q in parts)) for p in s))]
    expected = [np.concatenate(arrays) for arrays in zip(*take(single, 2))]
    assert same([joined], [expected])
    assert all(part.state() == {**state, "images": 48} for part in parts)


def test_dummies_resume_at_their_position():
    data, resumed = (DummyIter(4, SHAPE, 5, num_classes=1000) for _ in range(2))
    take(data, 7)
    assert data.state() == {"epoch": 1, "images": 2}  # counts batches, so it holds for any batch size
    resumed.restore(data.state())
    assert same(take(data, 4), take(resumed, 4))


def test_a_batch_is_returned_while_the_engine_is_busy(rec):
    """mx.nd.array would wait for earlier operations, such as the previous step's backward pass."""
    data = FaceImageIter(4, SHAPE, rec, threads=2)
    data.next()
    time.sleep(0.2)  # the threads read the next batches
    a = mx.nd.random.uniform(shape=(1000, 1000))
    a.wait_to_read()
    start = time.perf_counter()
    products = [mx.nd.dot(a, a) for _ in range(30)]
    batch, labels = data.next(), host_array(np.arange(5))
    returned = time.perf_counter() - start
    mx.nd.waitall()
    computed = time.perf_counter() - start
    assert returned < 0.2 * computed
    assert len(products) == 30 and batch.label[0].shape == (4,) and labels.asnumpy().tolist() == [0, 1, 2, 3, 4]


def resources_after_threads_end():
    """Returns the resources of this process once the threads of deleted iterators have ended."""
    gc.collect()
    happens(lambda: threading.active_count() <= 1, 5)
    return resources()


def resources():
    """Returns (open files, threads, resident KiB) of this process."""
    gc.collect()
    with open("/proc/self/status") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory


@pytest.mark.slow
def test_many_epochs_leak_nothing_and_close_releases_everything(rec):
    before = resources_after_threads_end()
    data = FaceImageIter(4, SHAPE, rec, threads=4, **all_augmentations())
    take(data, 100)
    early = resources()
    for _ in range(1000):  # 83 epochs; a batch is 9 KB
        take(data, 1)
    late = resources()
    assert late[:2] == early[:2] == (before[0] + 1, before[1] + 4)
    assert late[2] - early[2] < 4096
    data.close()
    data.close()
    assert resources_after_threads_end()[:2] == before[:2]


def test_memory_of_a_batch_is_not_reused_while_a_slice_or_an_operator_needs_it(rec):
    data = FaceImageIter(4, SHAPE, rec, threads=3, **all_augmentations())
    reference = take(FaceImageIter(4, SHAPE, rec, threads=1, **all_augmentations()), 40)
    busy = mx.nd.random.uniform(shape=(500, 500))
    slices, sums = [], []
    for batch in following(data, 40):
        slices.append(batch.data[0][1:3])
        sums.append(batch.data[0] + 0 * mx.nd.dot(busy, busy)[0, 0])  # the product keeps the engine busy
    del batch
    for (images, _), part, total in zip(reference, slices, sums):
        assert (part.asnumpy() == images[1:3]).all() and (total.asnumpy() == images).all()
