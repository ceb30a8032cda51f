"""A batch on the host: the inputs of the backbone, one array or several by name, and labels.

Shapes: N items, B local batch.
"""

from collections.abc import Callable, Mapping
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


def num_items(inputs: Any) -> int:
    """Returns N."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
