"""A part of the memory of a rank."""

from __future__ import annotations

from typing import NamedTuple

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
