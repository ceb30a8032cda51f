"""Predicts the memory of a rank, and the bytes that a training step moves, before the training starts.

``partial-fc plan --classes 10000000 --ranks 8 --ratio 0.1 --fp16 --network r50 --gpu-memory 10.76``

All predictions are computed from sizes. benchmarks/planner_check.py compares them with measurements.
"""

from typing import NamedTuple

from .backbones import BackboneSizes, backbone_sizes
from .case import Case, Layer, lay_out
from .memory import Part, memory_parts, with_head
from .traffic import WAYS, Transfer, transfers

__all__ = ["Case", "Part", "Plan", "Transfer", "plan"]


class Plan(NamedTuple):
    """Sizes, memory and traffic of the rank with the most classes."""

    case: Case
    layer: Layer
    backbone: BackboneSizes | None  # None without a network
    parts: list[Part]
    traffic: list[Transfer]
    heads: list["Plan"]  # plans of the heads after the first, each as if it were trained alone

    def memory(self, place: str) -> int:
        """Returns the bytes of all parts in ``place``: device, host or file."""
        return sum(part.nbytes for part in self.parts if part.place == place)


def plan(case: Case) -> Plan:
    """Computes memory and traffic of a training.

    Raises:
        ValueError: The trainer does not support this case, or the network is unknown.
    """
    layer, backbone = lay_out(case), backbone_sizes(case)
    parts, traffic = memory_parts(case, layer, backbone), transfers(case, layer, backbone)
    heads = {name: plan(of_head) for name, of_head in case.of_heads().items()}
    for name, planned in heads.items():
        parts = with_head(parts, planned.parts, name)
        # The ranks average the gradients of the backbone once in a step.
        moves = [transfer for transfer in planned.traffic if not transfer.name.startswith("all-reduce")]
        traffic += [transfer._replace(name=f"{transfer.name}, head {name}") for transfer in moves]
    traffic.sort(key=lambda transfer: WAYS.index(transfer.way))
    return Plan(case, layer, backbone, parts, traffic, list(heads.values()))
