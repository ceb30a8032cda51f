"""Python's garbage collector while libraries are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 50_000  # objects; 700 by default, and PyTorch makes a million that stay


@contextmanager
def few_collections() -> Iterator[None]:
    """Collects cyclic garbage rarely within the block or the decorated function.

    Importing PyTorch and its compiler, which DistributedDataParallel does, then takes a tenth less. A training has the
    default: it may leave cycles that hold large arrays.
    """
    before = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
