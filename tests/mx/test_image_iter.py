"""The iterators with MXNet, and RecordIO files compared with MXNet's own reader and writer."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from mxnet import recordio

from face_sets import face_batches, overwrite
from partial_fc.data.face_records import write_face_set
from partial_fc.data.item_batches import ArrayItems, ItemBatches
from partial_fc.data.recordio.format import MAGIC_BYTES, RecordWriter
from partial_fc.data.transforms import Augmentation
from partial_fc_mxnet.build import MXNetFramework
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


def test_sets_with_several_labels_are_refused():
    items = ArrayItems(np.zeros((4, *SHAPE), np.uint8), [[0, 1], [2], [], [1]])
    with pytest.raises(ValueError, match="several labels, which this trainer does not support: .*pytorch/run.sh"):
        MXNetFramework.load_data(None, ItemBatches(items, 2), 1)


def test_both_writers_write_the_same_bytes(tmp_path):
    writer = recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    with RecordWriter(str(tmp_path / "b.rec"), str(tmp_path / "b.idx")) as ours:
        for key, payload in PAYLOADS.items():
            writer.write_idx(key, payload)
            ours.write(key, payload)
    writer.close()
    for extension in (".rec", ".idx"):
        assert (tmp_path / ("a" + extension)).read_bytes() == (tmp_path / ("b" + extension)).read_bytes()


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


def test_every_argument_reaches_the_set(rec):
    content = Path(rec).read_bytes()
    overwrite(rec, content.rindex(b"\x89PNG"), b"bad")
    both = {"shuffle": True, "seed": 7, "skip_bad_images": 1}  # in this order rank 1 reads the bad image
    augmentation = {"rand_mirror": True, "cutoff": 4, "color_jittering": 0.3, "jpeg_compression": 20}
    data = FaceImageIter(2, SHAPE, rec, images_filter=3, context=1, context_num=2, **augmentation, **both)
    same = {"min_images_per_class": 3, "rank": 1, "size": 2, "augmentation": Augmentation(*augmentation.values())}
    faces = face_batches(rec, 2, SHAPE[1:], **same, **both)
    batches = list(data)
    assert len(batches) == 5
    for number, batch in enumerate(batches):
        images, labels = faces.batch(0, 4 * number)
        assert (batch.data[0].asnumpy() == images).all() and (batch.label[0].asnumpy() == labels).all()
    with pytest.raises(ValueError, match="no identity has 4 images"):
        FaceImageIter(4, SHAPE, rec, images_filter=4)


def test_labels_beyond_float32_stay_exact():
    data = DummyIter(2000, (3, 1, 1), 1, num_classes=1 << 25)
    labels = data.next().label[0]
    odd = labels.asnumpy() % 2 == 1
    big = labels.asnumpy() > 1 << 24
    assert (odd & big).sum() > 300  # float32 could represent none of them


def test_invalid_arguments_are_refused(rec):
    with pytest.raises(ValueError, match="data_shape"):
        FaceImageIter(4, (112, 112), rec)
    with pytest.raises(ValueError, match="threads"):
        FaceImageIter(4, SHAPE, rec, threads=-1)
    with pytest.raises(ValueError, match="key 13 .* label 4"):
        FaceImageIter(4, SHAPE, rec).check_labels(4)
    with pytest.raises(ValueError, match="num_classes"):
        DummyIter(4, SHAPE, 3, num_classes=0)


def test_pillow_decodes_beside_horovod():
    """In a new process, because the libjpeg that is loaded first decides."""
    program = (
        "import io, sys, partial_fc_mxnet, horovod.mxnet, PIL.Image\n"
        "file = io.BytesIO()\n"
        "PIL.Image.new('RGB', (8, 8), (200, 100, 0)).save(file, sys.argv[1], compression='jpeg')\n"
        "assert abs(PIL.Image.open(file).convert('RGB').getpixel((4, 4))[0] - 200) < 8"
    )
    for kind in ("jpeg", "tiff"):
        subprocess.run([sys.executable, "-c", program, kind], check=True, timeout=60)
