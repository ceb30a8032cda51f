"""The inputs of a backbone on the host: one array, or several by name.

Shapes: N items.
"""

from collections.abc import Callable, Mapping
from typing import Any

# An array (N, ...), or a mapping from names to such arrays.
Inputs = Any


def map_inputs(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Returns ``function(array)``, or a dict of it for arrays by name."""
    if isinstance(inputs, Mapping):
        return {name: function(array) for name, array in inputs.items()}
    return function(inputs)


def num_items(inputs: Any) -> int:
    """Returns N."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
