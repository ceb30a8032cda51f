"""Pass after pass over an iterator."""

from __future__ import annotations

from typing import Any, Iterator


def passes(train_data, endless: bool) -> Iterator[tuple[int, Any]]:
    """Yields (pass, batch) and resets the iterator at the end of each pass; one pass only unless ``endless``.

    Raises:
        ValueError: a pass had no batch.
    """
    epoch = 0
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
