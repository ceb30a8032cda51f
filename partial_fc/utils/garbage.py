"""Python's garbage collector while libraries are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 50_000  # objects; Python's own is 700 to 2,000, and PyTorch with its compiler makes 290,000 that stay


@contextmanager
def few_collections() -> Iterator[None]:
    """Collects cyclic garbage rarely within the block or the decorated function.

    The start and end of a training, which import PyTorch and its compiler, take a tenth less processor time with it. A
    step has the default: it may leave cycles that hold large arrays.
    """
    before = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
