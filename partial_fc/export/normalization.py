"""Detects whether a model normalizes pixels itself, by the rule of the masked-face challenge (ICCV 2021, InsightFace).

The model does if its first nodes include, by name, a subtraction and a multiplication or division. Otherwise the caller
must pass (x - 127.5) / 127.5.
"""

from collections.abc import Iterable

FIRST_NODES = 8
SUBTRACTS, SCALES = ("Sub", "_minus"), ("Mul", "_mul", "Div")
MEAN, SCALE = 127.5, 1 / 127.5


def takes_raw_pixels(names: Iterable[str]) -> bool:
    """Returns whether a model whose nodes have these names, in order, takes pixels 0..255."""
    first = list(names)[:FIRST_NODES]
    return any(name.startswith(SUBTRACTS) for name in first) and any(name.startswith(SCALES) for name in first)
