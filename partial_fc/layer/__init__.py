"""The mathematics of the classification layer in NumPy: margins, softmax, sampling, sharding, tiles, updates.

Functions with an argument ``xp``, the module numpy or torch, take and return arrays of this module. They only use
functions that both modules have, so they also run on a GPU without copies to the host.
"""

from typing import Any

Array = Any  # numpy.ndarray or torch.Tensor
