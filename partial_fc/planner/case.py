"""What is planned, and the sizes of the classification layer that follow from it.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, C classes, L classes of a rank, S of them in a step,
T classes of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB, tile_classes

from .backbones import BACKBONES

FLOAT = 4  # bytes of a float32
DEVICES = ("gpu", "cpu")
BANKS = ("gpu", "host", "file")


class Case(NamedTuple):
    """A training.

    Attributes:
        classes: C.
        ranks: R.
        batch: B.
        embedding: E.
        ratio: r, share of a rank's centers that take part in a step.
        fp16: the backbone in float16, with float32 head and master weights.
        device: gpu or cpu, what the ranks compute on.
        bank: where centers and momentum lie: gpu (where the rank computes), host, or file.
        network: of the table of backbones; empty leaves the backbone out.
        tile_classes: T; 0 takes what suits the device.
        logits_cache_mb: the most that a step keeps from its first walk through the centers for its second, in MiB.
    """

    classes: int
    ranks: int = 1
    batch: int = 64
    embedding: int = 512
    ratio: float = 1.0
    fp16: bool = False
    device: str = "gpu"
    bank: str = "gpu"
    network: str = ""
    tile_classes: int = 0
    logits_cache_mb: int = LOGITS_CACHE_MB


class Layer(NamedTuple):
    """How the layer of the rank with the most classes goes through its centers, see tiled_softmax.py.

    Attributes:
        batch: G.
        classes: L.
        sampled: S.
        tile: T.
        tiles: how many.
        computes, bank: the places where the rank computes and where its bank lies: device, host or file.
        elsewhere: the bank is not on the GPU that computes, so centers have to travel.
        gathered: the rows of a tile have to be brought together.
        keeps: logits, and the centers unless they are the bank's own memory, stay between the two walks.
    """

    batch: int
    classes: int
    sampled: int
    tile: int
    tiles: int
    computes: str
    bank: str
    elsewhere: bool
    gathered: bool
    keeps: bool


def lay_out(case: Case) -> Layer:
    """The sizes of a case.

    Raises:
        ValueError: a number or a name is out of range.
    """
    _check(case)
    batch, classes = case.batch * case.ranks, shard_of(case.classes, 0, case.ranks).size
    sampled = num_sampled(classes, case.ratio)
    tile = min(sampled, case.tile_classes or tile_classes(batch, case.embedding, case.device))
    computes = "device" if case.device == "gpu" else "host"
    bank = computes if case.bank == "gpu" else case.bank
    elsewhere, gathered = computes == "device" and bank != "device", sampled < classes
    numbers_of_class = batch + (case.embedding if elsewhere or gathered else 0)
    keeps = FLOAT * numbers_of_class * sampled <= case.logits_cache_mb << 20
    return Layer(batch, classes, sampled, tile, -(-sampled // tile), computes, bank, elsewhere, gathered, keeps)


def _check(case: Case) -> None:
    for name in ("classes", "ranks", "batch", "embedding"):
        if getattr(case, name) < 1:
            raise ValueError(f"{name} is {getattr(case, name)}, but must be at least 1")
    for name in ("tile_classes", "logits_cache_mb"):
        if getattr(case, name) < 0:
            raise ValueError(f"{name} is {getattr(case, name)}, but must not be negative")
    for name, known in (("device", DEVICES), ("bank", BANKS), ("network", ("", *BACKBONES))):
        if getattr(case, name) not in known:
            names = ", ".join(filter(None, known))
            raise ValueError(f"{name} is {getattr(case, name)!r}, but must be one of {names}")
    if case.fp16 and case.device == "cpu":
        raise ValueError("MXNet has no float16 convolutions on the CPU: plan fp16 with GPUs")
