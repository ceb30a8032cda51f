"""The position in the data that a callback can save: behind the images of the last update."""

import cv2
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.data.face_records import write_face_set
from partial_fc.layer.sharding import shard_of
from partial_fc_mxnet import FaceImageIter, MarginLoss, MemoryBank, MemoryBankSGDOptimizer, SampleDistributeModule
from partial_fc_mxnet.memory_scheduler import get_scheduler

CLASSES, EACH, BATCH, SHAPE = 6, 9, 4, (3, 8, 8)
UPDATES = 6  # across the end of an epoch on three ranks


def picture(number):
    pixels = np.random.default_rng(number).integers(0, 256, (*SHAPE[1:], 3)).astype(np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def iterator(folder):
    rank, size = hvd.rank(), hvd.size()
    return FaceImageIter(BATCH, SHAPE, f"{folder}/train.rec", shuffle=True, context=rank, context_num=size, threads=2)


def test_resuming_from_any_update_continues_with_the_next_images(tmp_path):
    write_face_set(tmp_path, [[picture(EACH * c + i) for i in range(EACH)] for c in range(CLASSES)], SHAPE[1:])
    shard = shard_of(CLASSES, hvd.rank(), hvd.size())
    bank = MemoryBank(shard.size, shard.size, hvd.rank(), hvd.local_rank(), 8, str(tmp_path), gpu=False)
    rate = 1.0 / (BATCH * hvd.size())
    bank_sgd = MemoryBankSGDOptimizer(get_scheduler([100], 0.1, 0.1)[1], rate)
    symbol = mx.sym.FullyConnected(mx.sym.flatten(mx.sym.Variable("data")), num_hidden=8, name="embedding")
    module = SampleDistributeModule(symbol, MarginLoss(embedding_size=8), bank, bank_sgd)
    saved = []
    sgd = dict(learning_rate=0.001, rescale_grad=1.0 / BATCH)
    module.fit(
        iterator(tmp_path),
        sgd,
        lambda param: saved.append(module.loop.data_state),
        mx.init.Xavier(),
        max_update=UPDATES,
    )
    assert len(saved) == UPDATES and saved[0]["images"] == BATCH * hvd.size()
    plain = iterator(tmp_path)
    for state in [plain.state(), *saved]:
        resumed = iterator(tmp_path)
        resumed.restore(state)
        assert (next_images(resumed) == next_images(plain)).all()


def next_images(data):
    """Returns the images of the next batch."""
    try:
        return data.next().data[0].asnumpy()
    except StopIteration:
        data.reset()
        return data.next().data[0].asnumpy()
