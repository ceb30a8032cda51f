"""What a training needs before it is started: the memory of a rank by part, and the bytes that a step moves.

``python -m partial_fc.planner --classes 10000000 --ranks 8 --ratio 0.1 --fp16 --network r50 --gpu-memory 10.76``

Everything is computed from the sizes alone; nothing is allocated. benchmarks/planner_check.py measures the same parts.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of a rank, S of them in a step,
T classes of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

from .case import Case, Layer, lay_out
from .memory import Part, memory_parts
from .traffic import Transfer, moved_bytes

__all__ = ["Case", "Layer", "Move", "Part", "Plan", "plan"]


class Plan(NamedTuple):
    """All that is known of a case.

    Attributes:
        case: what was asked for.
        layer: the sizes that follow from it.
        parts: of the memory.
        traffic: of a step.
    """

    case: Case
    layer: Layer
    parts: list[Part]
    traffic: list[Transfer]

    def memory(self, place: str) -> int:
        """Bytes of all parts in a place: device, host or file."""
        return sum(part.nbytes for part in self.parts if part.place == place)


def plan(case: Case) -> Plan:
    """Plans a case, for the rank with the most classes.

    Raises:
        ValueError: a number or a name of the case is out of range.
    """
    layer = lay_out(case)
    return Plan(case, layer, memory_parts(case, layer), moved_bytes(case, layer))
