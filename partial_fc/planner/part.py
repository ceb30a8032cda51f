"""The parts of a rank's memory, and those that both trainers have: class centers and their momentum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .case import FLOAT, Case, Layer

MIB = 1 << 20


class Part(NamedTuple):
    """A part of the memory of a rank.

    Attributes:
        group: layer, backbone or process.
        name: what it contains.
        place: device, host or file.
        nbytes: size in bytes.
    """

    group: str
    name: str
    place: str
    nbytes: int


def layer_part(name: str, place: str, numbers: int) -> Part:
    """Returns a part of the layer with this many float32 numbers."""
    return Part("layer", name, place, FLOAT * numbers)


def bank_parts(case: Case, layer: Layer) -> Iterator[Part]:
    """Yields class centers and their momentum."""
    yield layer_part("class centers", layer.bank, case.embedding * layer.classes)
    yield layer_part("their momentum", layer.bank, case.embedding * layer.classes)
