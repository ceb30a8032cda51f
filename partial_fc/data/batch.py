"""A batch on the host: the inputs of the backbone, one array or several by name, and labels.

Shapes: N items, B local batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# An array (N, ...), or a mapping from names to such arrays. A backbone gets what the batches have, as tensors.
Inputs = Any


class Batch(NamedTuple):
    """Inputs and labels."""

    inputs: Any  # (B, ...) Inputs, or as many tensors of a framework on the host
    labels: np.ndarray  # (B,) int64


def map_inputs(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Returns ``function(array)``, or a dict of it for arrays by name."""
    if isinstance(inputs, Mapping):
        return {name: function(array) for name, array in inputs.items()}
    return function(inputs)


def arrays_of(inputs: Any) -> dict[str, Any]:
    """Returns the arrays by name; one alone is called ``inputs``."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}


def joined(batches: Sequence[Batch]) -> Batch:
    """Returns the items of all batches, which are NumPy arrays, in one."""
    inputs, labels = zip(*batches)
    arrays = {name: np.concatenate([arrays_of(each)[name] for each in inputs]) for name in arrays_of(inputs[0])}
    return Batch(arrays if isinstance(inputs[0], Mapping) else arrays["inputs"], np.concatenate(labels))


def num_items(inputs: Any) -> int:
    """Returns N."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
