"""Whether a model normalises pixels itself, by the rule that the masked-face challenge, and others after it, go by.

A subtraction and a multiplication (or division) among the first nodes, by the nodes' names; else whoever runs the model
is to give it (x - 127.5) / 127.5.
"""

from __future__ import annotations

from collections.abc import Iterable

FIRST_NODES = 8
SUBTRACTS, SCALES = ("Sub", "_minus"), ("Mul", "_mul", "Div")
MEAN, SCALE = 127.5, 1 / 127.5


def takes_raw_pixels(names: Iterable[str]) -> bool:
    """Whether a model whose nodes, in their order, have these names takes pixels 0 .. 255."""
    first = list(names)[:FIRST_NODES]
    return any(name.startswith(SUBTRACTS) for name in first) and any(name.startswith(SCALES) for name in first)
