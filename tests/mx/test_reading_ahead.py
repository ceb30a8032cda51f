"""FaceImageIter's threads: the same batches as without them, a place to go on from, and nothing left behind."""

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
from partial_fc_mxnet.ops.host_memory import host_array

SHAPE = (3, 16, 12)
IDENTITIES, EACH = 10, 5  # 50 images


def picture(number):
    """Noise of its own for every image, with its number in the corner: red tells the identity."""
    image = np.random.default_rng(number).integers(0, 256, (*SHAPE[1:], 3)).astype(np.uint8)
    image[0, 0, 2] = number
    return cv2.imencode(".png", image)[1].tobytes()


@pytest.fixture
def rec(tmp_path):
    people = [[picture(EACH * label + number) for number in range(EACH)] for label in range(IDENTITIES)]
    write_face_set(str(tmp_path), people, SHAPE[1:])
    return str(tmp_path / "train.rec")


def take(data, batches):
    """(images, labels) of the next batches, over the ends of epochs."""
    taken = []
    for _ in range(batches):
        try:
            batch = data.next()
        except StopIteration:
            data.reset()
            batch = data.next()
        taken.append((batch.data[0].asnumpy(), batch.label[0].asnumpy()))
    return taken


def same(one, other):
    return len(one) == len(other) and all((a == b).all() for x, y in zip(one, other) for a, b in zip(x, y))


def everything(**settings):
    return dict(shuffle=True, rand_mirror=True, cutoff=4, color_jittering=0.2, jpeg_compression=30, seed=3, **settings)


@pytest.mark.parametrize("threads", [2, 7])
def test_the_number_of_threads_changes_nothing(rec, threads):
    one, many = (
        FaceImageIter(4, SHAPE, rec, threads=1, **everything()),
        FaceImageIter(4, SHAPE, rec, threads=threads, **everything()),
    )
    assert (one.threads, many.threads) == (1, threads)
    assert same(take(one, 30), take(many, 30))


def test_an_early_reset_drops_what_was_read_ahead(rec):
    data, whole = (FaceImageIter(4, SHAPE, rec, threads=3, **everything()) for _ in range(2))
    take(data, 2)
    data.reset()
    take(whole, 12)
    assert same(take(data, 12), take(whole, 12))


@pytest.mark.parametrize("batch, ranks", [(12, 1), (6, 2), (4, 3), (3, 2)])
def test_going_on_at_another_number_of_ranks_gives_the_same_images(rec, batch, ranks):
    """Two global batches of 12 on one rank, the rest of the epoch and the next on others."""
    whole = FaceImageIter(12, SHAPE, rec, threads=2, **everything())
    take(whole, 2)
    state = whole.state()
    order = {"data_set": whole.digest, "num_images": 50, "shuffle": True, "seed": 3, "images_filter": 0}
    assert state == {"epoch": 0, "images": 24, **order}
    global_batch = batch * ranks
    parts = [FaceImageIter(batch, SHAPE, rec, context=rank, context_num=ranks, **everything()) for rank in range(ranks)]
    for part in parts:
        part.restore(state)
    steps = 24 // global_batch  # to image 48 of the epoch, which both global batches divide
    joined = [np.concatenate(arrays) for arrays in zip(*(p for s in zip(*(take(q, steps) for q in parts)) for p in s))]
    expected = [np.concatenate(arrays) for arrays in zip(*take(whole, 2))]
    assert same([joined], [expected])
    assert all(part.state() == {**state, "images": 48} for part in parts)


def test_a_state_of_another_order_is_refused(rec):
    state = FaceImageIter(4, SHAPE, rec, **everything()).state()
    with pytest.raises(ValueError, match="saved with shuffle=True, but now it is False"):
        FaceImageIter(4, SHAPE, rec, seed=3).restore(state)
    with pytest.raises(ValueError, match="saved with seed=3, but now it is 0"):
        FaceImageIter(4, SHAPE, rec, shuffle=True).restore(state)
    # As many images of another set.
    with pytest.raises(ValueError, match="saved with data_set="):
        FaceImageIter(4, SHAPE, rec, **everything()).restore({**state, "data_set": "another"})


def test_dummies_go_on_where_they_were():
    data, again = (DummyIter(4, SHAPE, 5, num_classes=1000, size=2) for _ in range(2))
    take(data, 7)
    assert data.state() == {"epoch": 1, "images": 16}
    again.restore(data.state())
    assert same(take(data, 4), take(again, 4))


def test_a_batch_keeps_its_content_while_others_are_read(rec):
    data = FaceImageIter(4, SHAPE, rec, threads=4, **everything())
    kept = [data.next() for _ in range(10)]
    before = [batch.data[0].asnumpy() for batch in kept]
    take(data, 40)
    assert all((batch.data[0].asnumpy() == pixels).all() for batch, pixels in zip(kept, before))


def test_a_batch_is_there_while_the_engine_is_busy(rec):
    """mx.nd.array would wait for what the engine was given before: one step's backward pass, in training."""
    data = FaceImageIter(4, SHAPE, rec, threads=2)
    data.next()
    time.sleep(0.2)  # the next ones are read meanwhile
    a = mx.nd.random.uniform(shape=(1000, 1000))
    a.wait_to_read()
    start = time.perf_counter()
    products = [mx.nd.dot(a, a) for _ in range(30)]
    batch, labels = data.next(), host_array(np.arange(5))
    given = time.perf_counter() - start
    mx.nd.waitall()
    computed = time.perf_counter() - start
    assert given < 0.2 * computed
    assert len(products) == 30 and batch.label[0].shape == (4,) and labels.asnumpy().tolist() == [0, 1, 2, 3, 4]


def test_a_bad_image_ends_the_reading_at_its_batch(tmp_path):
    people = [[picture(5 * label + number) for number in range(5)] for label in range(4)]
    people[1][3] = b"garbage"
    write_face_set(str(tmp_path), people, SHAPE[1:])
    data = FaceImageIter(4, SHAPE, str(tmp_path / "train.rec"), threads=3)
    take(data, 2)
    with pytest.raises(ValueError, match=r"train.rec: image with key 9 at offset \d+ cannot be decoded"):
        data.next()


def test_counters_and_numbers(rec):
    data = FaceImageIter(10, SHAPE, rec, threads=1)
    take(data, 5)
    counted = data.counters
    assert counted.images >= 50 and counted.bytes > 50 * 100 and counted.busy_seconds > counted.read_seconds > 0
    with pytest.raises(ValueError, match="threads must be at least 1, or 0"):
        FaceImageIter(10, SHAPE, rec, threads=-1)
    assert FaceImageIter(10, SHAPE, rec).threads == min(len(os.sched_getaffinity(0)), 8)


def left_behind():
    """(open files, threads, resident KiB) of this process, once the threads of dropped iterators have ended."""
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    return in_use()


def in_use():
    """(open files, threads, resident KiB) of this process."""
    gc.collect()
    with open("/proc/self/status") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory


def test_nothing_leaks_over_many_epochs_and_closing_leaves_nothing(rec):
    before = left_behind()
    data = FaceImageIter(4, SHAPE, rec, threads=4, **everything())
    take(data, 100)
    early = in_use()
    for _ in range(1000):  # 83 epochs; a batch is 9 KB
        take(data, 1)
    late = in_use()
    assert late[:2] == early[:2] == (before[0] + 1, before[1] + 4)
    assert late[2] - early[2] < 4096
    data.close()
    data.close()
    assert left_behind()[:2] == before[:2]


def test_dropping_without_closing_leaves_nothing(rec):
    before = left_behind()
    for _ in range(20):
        take(FaceImageIter(4, SHAPE, rec, threads=4), 2)
    assert left_behind()[:2] == before[:2]


def test_a_slice_of_a_batch_outlives_it_and_what_the_engine_has_to_do_with_it(rec):
    """The memory of a batch is used again, but only when nothing refers to it: no slice, and no operator to come."""
    data = FaceImageIter(4, SHAPE, rec, threads=3, **everything())
    reference = take(FaceImageIter(4, SHAPE, rec, threads=1, **everything()), 40)
    busy = mx.nd.random.uniform(shape=(500, 500))
    slices, sums = [], []
    for _ in range(40):
        try:
            batch = data.next()
        except StopIteration:
            data.reset()
            batch = data.next()
        slices.append(batch.data[0][1:3])
        sums.append(batch.data[0] + 0 * mx.nd.dot(busy, busy)[0, 0])  # the product keeps the engine behind
    del batch
    for (images, _), part, whole in zip(reference, slices, sums):
        assert (part.asnumpy() == images[1:3]).all() and (whole.asnumpy() == images).all()
