"""What a checkpoint costs a training: the copy that stops it, and how much longer its steps take while it is written.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/saving.py                      # 100,000 classes, r = 1, a trivial backbone
mpirun -q -np 2 python benchmarks/saving.py --classes 1000000 --ratio 0.1
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import layer_mxnet  # noqa: E402  which makes the packages importable and divides the cores, before MXNet is there

# isort: split
import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from partial_fc.checkpoint import CheckpointFolder  # noqa: E402
from partial_fc_mxnet import CallBackCheckpoint, SampleDistributeModule, collectives  # noqa: E402


class Watch:
    """Times steps by what the checkpoint was doing during them.

    Attributes:
        quiet, busy: seconds of steps without and with a file being written.
        copies: seconds that the training was stopped for a copy.
        writing: seconds from a copy to the end of its files.
    """

    def __init__(self, module, folder: CheckpointFolder, every: int):
        self.module, self.every = module, every
        self.checkpoint = CallBackCheckpoint(module, folder, every)
        self.quiet, self.busy, self.copies, self.writing = [], [], [], []

    def step(self, batch) -> None:
        busy = self.checkpoint._save is not None
        start = time.perf_counter()
        self.module.forward_backward(batch)
        self.module.update()
        mx.nd.waitall()
        end = time.perf_counter()
        (self.busy if busy else self.quiet).append(end - start)
        self.checkpoint(self.module.batch_end_param(None, 0, self.module.num_update))
        if self.module.num_update % self.every == 0:
            self.copies.append(time.perf_counter() - end)
            self._copied = time.perf_counter()
        elif busy and self.checkpoint._save is None:
            self.writing.append(end - self._copied)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="steps; a save must be done before the next begins")
    parser.add_argument("--folder", help="of the disk to write to; default: that of temporary files")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    hvd.init()
    place = collectives.broadcast("folder", tempfile.mkdtemp(dir=args.folder) if hvd.rank() == 0 else None)
    module = layer_mxnet.build(SampleDistributeModule, args.classes, args.ratio)
    watch = Watch(module, CheckpointFolder(place, kept=1), args.every)
    for batch in layer_mxnet.batches(args.classes, args.every * (args.saves + 1)):
        watch.step(batch)
    watch.checkpoint.save(module.num_update)
    if hvd.rank() == 0:
        size = sum(path.stat().st_size for path in Path(place).glob("step-*/*"))
        quiet, busy = np.median(watch.quiet[2:]), np.mean(watch.busy)
        print(
            f"{args.classes} classes, r = {args.ratio}, {hvd.size()} ranks, {size / 1e6:.0f} MB: copy "
            f"{np.median(watch.copies):.3f} s, written {np.median(watch.writing):.2f} s later; a step takes "
            f"{quiet * 1e3:.0f} ms, {busy * 1e3:.0f} ms meanwhile ({len(watch.busy)} of them, "
            f"{100 * (busy / quiet - 1):+.0f} %)"
        )
        shutil.rmtree(place)
    os.sync()


if __name__ == "__main__":
    main()
