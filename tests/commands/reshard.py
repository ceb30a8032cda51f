"""Reads the newest checkpoint of one folder and writes what it holds as one of another; without the first, trains.

Run by test_resharding.py on several ranks:  reshard.py CLASSES OUT [IN]
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet"), str(ROOT / "tests" / "parallel")]

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
from layer import E, build_bank, build_module  # noqa: E402

from partial_fc.checkpoints import CheckpointFolder  # noqa: E402
from partial_fc_mxnet import CallBackCheckpoint, DummyIter, MarginLoss, SavedTraining  # noqa: E402


def main(classes, out, source=None):
    hvd.init()
    bank = build_bank(classes, 0.5, "")
    module, params = build_module(bank, MarginLoss((1.0, 0.3, 0.1), 8.0, E))
    data = DummyIter(2, (3, 2, 2), 3, classes, 0, hvd.rank(), hvd.size())
    saved = SavedTraining.newest(CheckpointFolder(source, 1)) if source else None
    checkpoint = CallBackCheckpoint(module, CheckpointFolder(out, 1), frequent=0)
    # One that goes on has no update left to do.
    module.fit(data, params, None, mx.init.Xavier(), max_update=4, saved=saved)
    checkpoint.save(4)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
