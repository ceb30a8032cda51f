"""Pass after pass over an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def passes(train_data, endless: bool, first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yields (pass, batch) and resets the iterator at the end of each pass; one pass only unless ``endless``.

    Args:
        train_data: an iterator that is reset at the end of each pass; the first one goes on where it stands.
        endless: pass after pass.
        first: number of the first pass.

    Raises:
        ValueError: a pass had no batch.
    """
    epoch = first
    while True:
        empty = True
        for batch in train_data:
            empty = False
            yield epoch, batch
        if empty:
            raise ValueError("the training iterator gave no batch in a whole pass: it needs at least one batch a rank")
        train_data.reset()
        if not endless:
            return
        epoch += 1
