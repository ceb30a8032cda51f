"""Predicts the memory of a rank, and the bytes that a training step moves, before the training starts.

``partial-fc plan --classes 10000000 --ranks 8 --ratio 0.1 --fp16 --network r50 --gpu-memory 10.76``

All predictions are computed from sizes. benchmarks/planner_check.py compares them with measurements.
"""

from typing import NamedTuple

from .backbones import BackboneSizes, backbone_sizes
from .case import Case, Layer, lay_out
from .memory import Part, memory_parts
from .traffic import Transfer, transfers

__all__ = ["Case", "Part", "Plan", "Transfer", "plan"]


class Plan(NamedTuple):
    """Sizes, memory and traffic of the rank with the most classes."""

    case: Case
    layer: Layer
    backbone: BackboneSizes | None  # None without a network
    parts: list[Part]
    traffic: list[Transfer]

    def memory(self, place: str) -> int:
        """Returns the bytes of all parts in ``place``: device, host or file."""
        return sum(part.nbytes for part in self.parts if part.place == place)


def plan(case: Case) -> Plan:
    """Computes memory and traffic of a training.

    Raises:
        ValueError: The trainer does not support this case, or the network is unknown.
    """
    layer, backbone = lay_out(case), backbone_sizes(case)
    return Plan(case, layer, backbone, memory_parts(case, layer, backbone), transfers(case, layer, backbone))
