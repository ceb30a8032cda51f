"""The bytes that a rank moves in a step: between ranks, from and to its bank, and between host and GPU.

Collectives are counted as ring algorithms, in which every rank sends as much as it receives; no algorithm receives
less. Horovod's control messages, some 20 kB per second, are not counted.

Shapes: B local batch, R ranks, E embedding, S sampled classes per rank.
"""

from collections.abc import Iterator
from typing import NamedTuple

from partial_fc.layer.label_encoding import DIGITS

from .backbones import BackboneSizes
from .case import FLOAT, GRADIENT_BYTES, SLOPED, Case, Layer

LABEL = 8  # bytes of an int64
WAYS = ("network", "bank", "bus")
STATISTICS = 3  # numbers per row: maximum, sum, target logit


class Transfer(NamedTuple):
    """Bytes that a step moves."""

    way: str  # network, bank, or bus (between host and GPU)
    name: str  # what is moved; for collectives of the layer, with the name in the code in parentheses
    out: int  # bytes sent, read, or copied to the GPU
    back: int  # bytes received, written, or copied from the GPU


def transfers(case: Case, layer: Layer, backbone: BackboneSizes | None) -> list[Transfer]:
    """Returns all transfers that are not empty."""
    moves = [*_network(case, layer, backbone), *_bank(case, layer), *_bus(case, layer, backbone)]
    return [transfer for transfer in moves if transfer.out or transfer.back]


def _network(case: Case, layer: Layer, backbone: BackboneSizes | None) -> Iterator[Transfer]:
    others = case.ranks - 1
    images = others * case.gradient_acc * case.batch  # of this rank, times the ranks to send them to
    gradients = 0
    if backbone:
        gradients = 2 * backbone.half_parameters + GRADIENT_BYTES[case.gradient_dtype] * (
            backbone.parameters - backbone.half_parameters
        )
    gathered, row_bytes = SLOPED.get(case.margin, ("", 0))
    for name, nbytes in (
        ("all-gather of all labels of the update (labels)", images * LABEL * (case.gradient_acc > 1)),
        ("all-gather of features and labels (features)", images * (case.embedding + DIGITS) * FLOAT),
        (f"all-gather of {gathered}", images * case.ranks * row_bytes),
        ("all-gather of statistics (softmax_statistics)", images * case.ranks * STATISTICS * FLOAT),
        ("reduce-scatter of features' gradient (feature_gradient)", images * case.embedding * FLOAT),
        ("all-reduce of the backbone's gradients", 2 * others * gradients // case.ranks),
    ):
        yield Transfer("network", name, nbytes, nbytes)


def _bank(case: Case, layer: Layer) -> Iterator[Transfer]:
    read = rows = layer.center_bytes * layer.sampled
    if case.trainer == "mxnet" or not layer.elsewhere:
        # Centers are read in each pass, unless the forward pass has kept a copy, and again for the update if this copy
        # is on the GPU. 16-bit centers are read again.
        copied = (layer.gathered or layer.elsewhere) and not layer.narrow
        passes = (1 if copied and layer.keeps else 2) + layer.elsewhere
        read = passes * rows + layer.center_bytes * min(case.batch, layer.sampled)
        # The update after several micro-batches reads the centers again.
        read = case.gradient_acc * read + rows * (case.gradient_acc > 1)
    states = layer.state_bytes * layer.sampled
    yield Transfer("bank", "class centers", read, rows)
    yield Transfer("bank", "states of their optimizer", states, states)


def _bus(case: Case, layer: Layer, backbone: BackboneSizes | None) -> Iterator[Transfer]:
    if layer.computes == "host":
        return
    rows = FLOAT * layer.center_width * layer.sampled
    if layer.elsewhere and case.trainer == "torch":
        staged = (layer.center_bytes + layer.state_bytes) * layer.sampled
        yield Transfer("bus", "centers and states", staged, staged)
    elif layer.elsewhere:
        yield Transfer("bus", "centers to the GPU, their gradient back", rows * (1 if layer.keeps else 2), rows)
    if backbone:
        yield Transfer("bus", case.items, case.gradient_acc * case.batch * backbone.item_bytes, 0)
