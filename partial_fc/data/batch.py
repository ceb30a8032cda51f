"""A batch on the host: the inputs of the backbone, one array or several by name, and labels.

Shapes: N items, B local batch, n labels of an item.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Inputs = Any  # an array (N, ...), or a mapping from names to such arrays


class Batch(NamedTuple):
    """Inputs and labels."""

    inputs: Any  # Inputs (B, ...): arrays, or a framework's tensors on the host
    labels: np.ndarray  # (B,) int64, or (B, n) with -1 for the labels that an item lacks


def map_inputs(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Returns ``function(array)``; for a mapping of arrays, a dict of the results."""
    if isinstance(inputs, Mapping):
        return {name: function(array) for name, array in inputs.items()}
    return function(inputs)


def arrays_of(inputs: Any) -> dict[str, Any]:
    """Returns the arrays by name; a single array is called ``inputs``."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenates batches of NumPy arrays."""
    inputs, labels = zip(*batches)
    arrays = {name: np.concatenate([arrays_of(each)[name] for each in inputs]) for name in arrays_of(inputs[0])}
    return Batch(arrays if isinstance(inputs[0], Mapping) else arrays["inputs"], np.concatenate(labels))


def num_items(inputs: Any) -> int:
    """Returns N."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
