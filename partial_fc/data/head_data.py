"""The training data of several heads as one iterator."""

from collections.abc import Mapping
from typing import Any

from partial_fc.distributed.errors import errors_of_head

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
    """

    def __init__(self, sets: Mapping[str, TrainingData]):
        self.sets = sets
        (_, first), *self._others = sets.items()
        self._first: Any = first
        self.cursor = first.cursor

    def next(self) -> list[Any]:
        """Returns the next batch of each head; the epoch of the first set ends as in BatchIterator."""
        batches = []
        for name, data in self.sets.items():
            with errors_of_head(name):
                try:
                    batches.append(data.next())
                except StopIteration:
                    if data is self._first:
                        raise
                    data.reset()
                    batches.append(data.next())
        return batches

    def reset(self) -> None:
        """Starts the next epoch of the first set."""
        self._first.reset()

    def state(self) -> dict:
        """Returns the positions in all sets; the others' are in ``heads``, by name."""
        return {**self._first.state(), "heads": {name: data.state() for name, data in self._others}}

    def restore(self, state: dict) -> None:
        """Continues at positions that `state` has returned, see BatchIterator."""
        self._first.restore(state)
        for name, data in self._others:
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


JobData = TrainingData | HeadData
