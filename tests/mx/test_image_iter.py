"""The iterators with MXNet, and RecordIO files compared with MXNet's own reader and writer."""

import cv2
import numpy as np
import pytest
from mxnet import recordio

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.recordio.format import MAGIC_BYTES, RecordHeader, RecordWriter, pack, unpack
from partial_fc.data.recordio.reader import RecordReader
from partial_fc_mxnet.image_iter import DummyIter, FaceImageIter

SHAPE = (3, 16, 12)
PAYLOADS = {
    1: b"",
    2: b"abc",
    3: MAGIC_BYTES * 2,
    4: b"head" + MAGIC_BYTES + b"tail!",
    5: b"x" + MAGIC_BYTES,
    70000: bytes(range(256)) * 9,
}


@pytest.fixture
def rec(tmp_path):
    """Writes 7 identities of 3 images; red is ten times the label, blue increases to the right."""

    def encoded(label):
        image = np.zeros((*SHAPE[1:], 3), np.uint8)
        image[..., 2], image[..., 0] = 10 * label, 20 * np.arange(SHAPE[2])
        return cv2.imencode(".png", image)[1].tobytes()

    write_face_set(str(tmp_path), [[encoded(label)] * 3 for label in range(7)], SHAPE[1:])
    return str(tmp_path / "train.rec")


def test_mxnet_reads_files_of_recordwriter(tmp_path):
    paths = str(tmp_path / "a.rec"), str(tmp_path / "a.idx")
    with RecordWriter(*paths) as writer:
        for key, payload in PAYLOADS.items():
            writer.write(key, pack(RecordHeader(0, np.array([key, 2.5]), key, 3), payload))
    reader = recordio.MXIndexedRecordIO(paths[1], paths[0], "r")
    assert reader.keys == list(PAYLOADS)
    for key, payload in PAYLOADS.items():
        header, content = recordio.unpack(reader.read_idx(key))
        assert (header.flag, header.label.tolist(), header.id, header.id2, content) == (2, [key, 2.5], key, 3, payload)


def test_recordreader_reads_files_of_mxnet(tmp_path):
    paths = str(tmp_path / "a.rec"), str(tmp_path / "a.idx")
    writer = recordio.MXIndexedRecordIO(paths[1], paths[0], "w")
    for key, payload in PAYLOADS.items():
        writer.write_idx(key, recordio.pack(recordio.IRHeader(0, float(key), key, 3), payload))
    writer.close()
    reader = RecordReader(*paths)
    assert len(reader) == len(PAYLOADS)
    for key, payload in PAYLOADS.items():
        assert unpack(reader.read(key)) == ((0, float(key), key, 3), payload)


def test_both_writers_write_the_same_bytes(tmp_path):
    writer = recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    with RecordWriter(str(tmp_path / "b.rec"), str(tmp_path / "b.idx")) as ours:
        for key, payload in PAYLOADS.items():
            writer.write_idx(key, payload)
            ours.write(key, payload)
    writer.close()
    for extension in (".rec", ".idx"):
        assert (tmp_path / ("a" + extension)).read_bytes() == (tmp_path / ("b" + extension)).read_bytes()


def test_a_set_in_the_layout_of_the_original_written_by_mxnet(tmp_path):
    writer = recordio.MXIndexedRecordIO(str(tmp_path / "train.idx"), str(tmp_path / "train.rec"), "w")
    ranges = [(1, 3), (3, 4), (4, 8)]
    writer.write_idx(0, recordio.pack(recordio.IRHeader(0, [8, 11], 0, 1), b""))
    for label, (start, end) in enumerate(ranges):
        for key in range(start, end):
            writer.write_idx(key, recordio.pack(recordio.IRHeader(0, label, key, 1), b"image %d" % key))
    for label, limits in enumerate(ranges):
        writer.write_idx(8 + label, recordio.pack(recordio.IRHeader(0, limits, 8 + label, 1), b""))
    writer.close()
    faces = FaceRecords(str(tmp_path / "train.rec"))
    assert faces.labels(np.arange(7)).tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert faces.read_image(4) == (b"image 5", 2)


def test_batches(rec):
    data = FaceImageIter(4, SHAPE, rec)
    assert (data.num_images, data.num_classes) == (21, 7)
    batches = list(data)
    assert len(batches) == 5
    assert [(d.name, d.shape, np.dtype(d.dtype)) for d in data.provide_data] == [("data", (4, *SHAPE), np.float32)]
    assert [(d.name, d.shape, np.dtype(d.dtype)) for d in data.provide_label] == [("softmax_label", (4,), np.int64)]
    images, labels = batches[1].data[0], batches[1].label[0]
    assert (images.shape, images.dtype, labels.dtype) == ((4, *SHAPE), np.float32, np.int64)
    assert labels.asnumpy().tolist() == [1, 1, 2, 2]
    expected = np.zeros((4, *SHAPE), np.float32)
    expected[:, 0] = 10 * labels.asnumpy()[:, None, None]
    expected[:, 2] = 20 * np.arange(SHAPE[2])
    assert (images.asnumpy() == expected).all()


def test_reset_starts_the_next_epoch_and_only_after_a_batch(rec):
    def labels(data):
        return [batch.label[0].asnumpy().tolist() for batch in data]

    data, other = (FaceImageIter(4, SHAPE, rec, shuffle=True, seed=9) for _ in range(2))
    other.reset()
    first = labels(data)
    assert first == labels(other)
    with pytest.raises(StopIteration):
        data.next()
    data.reset()
    other.reset()
    other.reset()
    second = labels(data)
    assert second == labels(other) and second != first and len(second) == 5


def test_ranks_share_an_epoch(rec):
    ranks = [FaceImageIter(3, SHAPE, rec, shuffle=True, context=rank, context_num=2, seed=4) for rank in range(2)]
    single = FaceImageIter(6, SHAPE, rec, shuffle=True, seed=4)
    for whole, *parts in zip(single, *ranks):
        for kind in ("data", "label"):
            joined = np.concatenate([getattr(part, kind)[0].asnumpy() for part in parts])
            assert (joined == getattr(whole, kind)[0].asnumpy()).all()
    assert all(rank.cursor.images == 18 for rank in ranks)


def test_invalid_sets_and_sizes_are_refused(rec, tmp_path):
    with pytest.raises(ValueError, match=r"data_shape must be \(3, height, width\)"):
        FaceImageIter(4, (112, 112), rec)
    with pytest.raises(ValueError, match="has images of 16x12"):
        FaceImageIter(4, (3, 112, 112), rec)
    with pytest.raises(ValueError, match="needs 22 images, there are 21"):
        FaceImageIter(11, SHAPE, rec, context_num=2)
    with pytest.raises(FileNotFoundError, match="none.rec"):
        FaceImageIter(4, SHAPE, str(tmp_path / "none.rec"))
    with pytest.raises(ValueError, match=r"image with key 13 at offset \d+ has label 4, but the network has 4"):
        FaceImageIter(4, SHAPE, rec).check_labels(4)


def test_dummy_labels_spread_over_all_classes():
    classes = 100_000_000
    data = DummyIter(64, SHAPE, 50, num_classes=classes, seed=1)
    batches = list(data)
    labels = np.concatenate([batch.label[0].asnumpy() for batch in batches])
    assert len(batches) == 50 and labels.dtype == np.int64
    assert labels.min() >= 0 and labels.max() < classes
    assert np.histogram(labels, 10, (0, classes))[0].min() > 200  # 320 expected in each tenth
    assert len(np.unique(labels)) > 3190
    assert batches[0].data[0] is batches[1].data[0] and batches[0].data[0].shape == (64, *SHAPE)
    assert batches[0].data[0].asnumpy().std() > 50


def test_dummy_batches_repeat_after_reset_and_differ_between_ranks():
    def labels(data):
        return [batch.label[0].asnumpy().tolist() for batch in data]

    data = DummyIter(4, SHAPE, 3, num_classes=1000)
    first = labels(data)
    with pytest.raises(StopIteration):
        data.next()
    data.reset()
    assert labels(data) == first and first[0] != first[1]
    assert labels(DummyIter(4, SHAPE, 3, num_classes=1000, rank=1)) != first
    assert labels(DummyIter(4, SHAPE, 3, num_classes=1000, seed=1)) != first
    assert max(max(batch) for batch in labels(DummyIter(4, SHAPE, 3, num_classes=1))) == 0
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        DummyIter(4, SHAPE, 3, num_classes=0)


def test_labels_beyond_float32_stay_exact():
    data = DummyIter(2000, (3, 1, 1), 1, num_classes=1 << 25)
    labels = data.next().label[0]
    odd = labels.asnumpy() % 2 == 1
    big = labels.asnumpy() > 1 << 24
    assert (odd & big).sum() > 300  # float32 could represent none of them
