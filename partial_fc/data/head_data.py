"""The training data of several heads as one iterator."""

from collections.abc import Mapping
from typing import Any

from .batch import Inputs
from .class_images import ClassImages
from .training_data import BatchIterator, TrainingData


class HeadData(BatchIterator[list[Any]]):
    """Batches for several heads: a list with the batch of each head, in order.

    An epoch is one of the first head's set. The others repeat their sets, each with its own position and order.

    Args:
        sets: name of a head -> its data.

    Attributes:
        sets: as above.
        cursor: position in the first set.

    Raises:
        ValueError: A set has fewer items than a global batch; names the head.
    """

    def __init__(self, sets: Mapping[str, TrainingData]):
        self.sets, self._others = dict(sets), dict(sets)
        self._first: Any = self._others.pop(next(iter(sets)))
        self.cursor = self._first.cursor
        for name, data in sets.items():
            if data.cursor.num_images < data.cursor.global_batch:
                raise ValueError(
                    f"the set of head {name} has {data.cursor.num_images} items, fewer than the "
                    f"{data.cursor.global_batch} of a batch on all ranks: set a smaller batch_size"
                )

    def next(self) -> list[Any]:
        """Returns the next batch of each head; the epoch of the first set ends as in BatchIterator."""
        return [self._first.next(), *map(_next_or_first, self._others.values())]

    def reset(self) -> None:
        """Starts the next epoch of the first set."""
        self._first.reset()

    def state(self) -> dict:
        """Returns the positions in all sets; the others' are in ``heads``, by name."""
        return {**self._first.state(), "heads": {name: data.state() for name, data in self._others.items()}}

    def restore(self, state: dict) -> None:
        """Continues at positions that `state` has returned, see BatchIterator."""
        self._first.restore(state)
        for name, data in self._others.items():
            data.restore(state["heads"][name])

    @property
    def digest(self) -> str:
        """Identifies the content of all sets."""
        return ", ".join(data.digest for data in self.sets.values())

    @property
    def skipped(self) -> int:
        """Number of bad items that this rank has skipped so far."""
        return sum(data.skipped for data in self.sets.values())

    def sample(self, count: int) -> Inputs:
        """See Batches; of the first set."""
        return self._first.sample(count)

    def class_images(self) -> ClassImages:
        """See DataLoader; of the first set."""
        images: ClassImages = self._first.class_images()
        return images

    def close(self) -> None:
        """Closes all sets."""
        for data in self.sets.values():
            data.close()


def _next_or_first(data: BatchIterator[Any]) -> Any:
    """Returns the next batch, at the end of an epoch the first one of the next epoch."""
    try:
        return data.next()
    except StopIteration:
        data.reset()
        return data.next()


JobData = TrainingData | HeadData
