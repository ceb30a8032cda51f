"""The mathematics of the classification layer in NumPy: margins, softmax, sampling, sharding, tiles, updates.

Functions with an argument ``xp``, the module numpy or torch, take and return its arrays. They use only what both
modules have under the same name, so that they also run on a GPU, without a copy to the host.
"""

from typing import Any

Array = Any  # of either framework
