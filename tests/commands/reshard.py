"""Restores the newest checkpoint of folder IN, or trains if there is none, and saves a checkpoint in folder OUT.

Run by test_resharding.py on several ranks:  reshard.py CLASSES OUT [IN]
"""

import sys

import horovod.mxnet as hvd
import mxnet as mx
from layer import E, build_bank, build_module

from partial_fc.checkpoint import CheckpointFolder
from partial_fc_mxnet import CallBackCheckpoint, DummyIter, MarginLoss, SavedTraining


def main(classes, out, source=None):
    hvd.init()
    bank = build_bank(classes, 0.5, "")
    module, params = build_module(bank, MarginLoss((1.0, 0.3, 0.1), 8.0, E))
    data = DummyIter(2, (3, 2, 2), 3, classes, 0, hvd.rank())
    saved = SavedTraining.newest(CheckpointFolder(source, 1), module.collectives) if source else None
    checkpoint = CallBackCheckpoint(module, CheckpointFolder(out, 1), frequent=0)
    # A resumed training has no update left to do.
    module.fit(data, params, None, mx.init.Xavier(), max_update=4, saved=saved)
    checkpoint.save(4)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
