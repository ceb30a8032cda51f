"""A user's Datasets with dicts as items, for threads and for worker processes, which import this module."""

import os
import signal
import tempfile
import time

import numpy as np

from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.sources.dataset import DatasetItems

N, CLASSES = 40, 10


class Signals:
    """Items are ({"values": (8,) float32, "known": (8,) bool}, label); `bad` positions cannot be read."""

    targets = np.arange(N) % CLASSES

    def __init__(self, bad=()):
        self.bad = bad

    def __len__(self):
        return N

    def __getitem__(self, position):
        if position in self.bad:
            raise OSError(f"no signal {position}")
        draws = np.random.default_rng(position).standard_normal(8).astype(np.float32)
        return {"values": draws + np.float32(self.targets[position]), "known": draws > -1}, int(self.targets[position])


class SomeBad(Signals):
    """One item cannot be read."""

    def __init__(self):
        super().__init__(bad=(3,))


class Untold(Signals):
    """Has no targets, only the labels of its items."""

    targets = None

    def __getitem__(self, position):
        return Signals()[position]


class Deadly(Signals):
    """Kills the process that reads item 20."""

    def __getitem__(self, position):
        if position == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(position)


class Endless(Signals):
    """Reading item 20 never ends."""

    def __getitem__(self, position):
        while position == 20:
            time.sleep(0.1)
        return super().__getitem__(position)


class EndlessItems(DatasetItems):
    """Reading item 20 blocks one thread; other threads continue, as Items have no lock, unlike a Dataset."""

    def read(self, positions, epoch):
        while 20 in positions:
            time.sleep(0.1)
        return super().read(positions, epoch)


class OnDisk(Signals):
    """Every item reads a file and drops it from the page cache."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, position):
        with open(self.path, "rb") as file:
            file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return super().__getitem__(position)


class Sought:
    """Images of one color each, from one file by seek and read, which is not thread-safe."""

    targets = range(N)

    def __init__(self):
        self.file = tempfile.TemporaryFile(buffering=0)
        self.file.write(bytes(range(N)))

    def __len__(self):
        return N

    def __getitem__(self, position):
        self.file.seek(position)
        time.sleep(0.001)
        return np.full((4, 4, 3), self.file.read(1)[0], np.uint8), position


class Backwards(Sought):
    """Orders its images itself, from the last one."""

    def epoch_positions(self, indices, epoch, seed):
        return N - 1 - indices


class OfProcess(Signals):
    """A set that differs between processes."""

    digest = os.getpid()


class StrangeError(Exception):
    """Cannot be unpickled, because its ``args`` are not the arguments of its constructor."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Faulty(DatasetItems):
    """Items with a bug."""

    def read(self, positions, epoch):
        raise StrangeError("this", "that")


class Unsendable(DatasetItems):
    """Returns arrays that cannot be pickled."""

    def read(self, positions, epoch):
        inputs, labels = super().read(positions, epoch)
        return {**inputs, "known": memoryview(inputs["known"])}, labels


def open_items(kind=Signals, items=DatasetItems, skip=0, **arguments):
    """Returns batches of 4, in order."""
    return ItemBatches(items(kind(**arguments)), 4, shuffle=False, skip_bad_items=skip)


def network(num_features):
    """Signal -> embedding (B, E)."""
    import torch
    from torch import nn

    class Network(nn.Sequential):
        def forward(self, inputs):
            return super().forward(torch.cat([inputs["values"], inputs["known"].float()], dim=1))

    return Network(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.PReLU(), nn.Linear(32, num_features))
