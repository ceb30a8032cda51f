"""The batches of one rank, of any set: which items are in each, and what reading them took.

Shapes: N items, B local batch, R ranks, G = B*R global batch.
"""

import time

import numpy as np

from partial_fc.utils.text import plural

from .batch import Batch
from .order import epoch_entries
from .read_log import ReadCounters, ReadLog


class RankBatches:
    """Items in an order, see Batches in training_data.py; a subclass opens and reads them.

    Args:
        num_items: N.
        batch_size: B.
        shuffle: draw a new order in every epoch.
        rank, size: this rank, and R.
        seed: of the order.
        log: of what is read.

    Attributes:
        num_images: N.
        batch_size, shuffle, rank, size, seed, log: as above.
        filtered: what decides which items of the set are in the order, as part of `order`.

    Raises:
        ValueError: an argument is out of range.
    """

    filtered: dict = {}  # noqa: RUF012

    def __init__(self, num_items: int, batch_size: int, shuffle: bool, rank: int, size: int, seed: int, log: ReadLog):
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is out of range for {plural(size, 'rank')}")
        if seed < 0:
            raise ValueError(f"seed must be >= 0, got {seed}")
        if batch_size <= 0:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if batch_size * size > num_items:
            raise ValueError(
                f"batch_size {batch_size} on {plural(size, 'rank')} needs {plural(batch_size * size, 'item')}, there "
                f"are {num_items}: use a smaller batch or fewer ranks"
            )
        self.num_images, self.batch_size, self.shuffle = num_items, batch_size, shuffle
        self.rank, self.size, self.seed, self.log = rank, size, seed, log

    @property
    def digest(self) -> str:
        """Identifies the content of the set, independent of its path."""
        raise NotImplementedError

    @property
    def order(self) -> dict:
        """What the order of the items depends on, as JSON."""
        return {
            "data_set": self.digest,
            "num_images": self.num_images,
            **self.filtered,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def batch(self, epoch: int, first: int) -> Batch:
        """Reads this rank's part of the global batch that begins at `first` (0 .. N - G) of the epoch's order.

        Raises:
            ValueError: an item is bad; names it.
        """
        start = time.perf_counter()
        indices = first + self.rank * self.batch_size + np.arange(self.batch_size)
        numbers = epoch_entries(self.num_images, self.shuffle, self.seed, epoch, indices)
        found, num_bytes, seconds = self._load(numbers, epoch)
        self.log.count(ReadCounters(self.batch_size, num_bytes, seconds, time.perf_counter() - start))
        return found

    def _load(self, numbers: np.ndarray, epoch: int) -> tuple[Batch, int, float]:
        """Returns the items of these numbers (B,), from 0 to N - 1, their bytes, and the seconds of reading them."""
        raise NotImplementedError
