"""The batches of one epoch after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def iterate_epochs(train_data, first: int = 0, endless: bool = True) -> Iterator[tuple[int, Any]]:
    """Yields (epoch, batch) and resets the iterator at the end of each epoch.

    Args:
        train_data: An iterator over batches with ``reset()``. The first epoch starts at its current position.
        first: Number of the first epoch.
        endless: Whether to continue after the first epoch.

    Raises:
        ValueError: An epoch has no batch.
    """
    epoch = first
    while True:
        empty = True
        for batch in train_data:
            empty = False
            yield epoch, batch
        if empty:
            raise ValueError(f"the training iterator has no batch in epoch {epoch}, expected at least one per rank")
        train_data.reset()
        if not endless:
            return
        epoch += 1
