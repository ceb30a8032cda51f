"""Arrays whose memory is reused when they are no longer referenced.

The system maps new memory page by page and zeroes it. For batches of 10 MB that took a tenth of the decoding time, and
more with several threads.
"""

import weakref

import numpy as np


class RecyclingPool:
    """Arrays of one shape and dtype; the memory of an array is reused when it and all its views are deleted.

    The pool never shrinks: it keeps as much memory as was ever in use at one time. Thread-safe.
    """

    def __init__(self, shape: tuple, dtype: type):
        self._shape, self._dtype = shape, dtype
        self._unused: list[memoryview] = []

    def take(self) -> np.ndarray:
        """Returns a writable array with arbitrary content."""
        try:
            memory = self._unused.pop()
        except IndexError:
            memory = np.empty(self._shape, self._dtype).data.cast("B")
        # NumPy makes this array the base of all views, because its own buffer does not belong to an array.
        array: np.ndarray = np.frombuffer(memory, self._dtype)
        weakref.finalize(array, self._unused.append, memory).atexit = False
        return array.reshape(self._shape)
