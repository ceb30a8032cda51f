"""Predicts the memory of a rank by part, and the bytes that a training step moves, before a training starts.

``partial-fc plan --classes 10000000 --ranks 8 --ratio 0.1 --fp16 --network r50 --gpu-memory 10.76``

Everything is computed from sizes; nothing is allocated. benchmarks/planner_check.py measures the same quantities.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of a rank, S of them in a step,
T classes of a tile.
"""

from typing import NamedTuple

from .case import Case, Layer, Part, lay_out, layer_part
from .mxnet_memory import mxnet_parts
from .torch_memory import torch_parts
from .traffic import Transfer, moved_bytes

__all__ = ["Case", "Layer", "Part", "Plan", "Transfer", "plan"]


class Plan(NamedTuple):
    """The sizes of a case's classification layer, the parts of a rank's memory, and the transfers of a step."""

    case: Case
    layer: Layer
    parts: list[Part]
    traffic: list[Transfer]

    def memory(self, place: str) -> int:
        """Bytes of all parts that are in `place`: device, host or file."""
        return sum(part.nbytes for part in self.parts if part.place == place)


def plan(case: Case) -> Plan:
    """Computes memory and traffic of the rank with the most classes.

    Raises:
        ValueError: the trainer cannot train this case, or r is not in (0, 1].
    """
    layer = lay_out(case)
    of_trainer = torch_parts if case.trainer == "torch" else mxnet_parts
    bank = (
        layer_part("class centers", layer.bank, case.embedding * layer.classes),
        layer_part("states of their optimizer", layer.bank, sum(layer.states) * layer.classes),
    )
    parts = [part for part in (*bank, *of_trainer(case, layer)) if part.nbytes]
    return Plan(case, layer, parts, moved_bytes(case, layer))
