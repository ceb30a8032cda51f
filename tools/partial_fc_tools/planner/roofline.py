"""A lower bound for the time of a step, by the roofline model.

    step >= backbone + layer + collectives, minus what overlaps

Computation takes at least the time of its products at peak rate, and of its bytes at the memory bandwidth.
docs/scale.md says what overlaps, and what is not counted.

Shapes: B local batch, G global batch, E embedding, S sampled classes per rank.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from . import Plan
from .case import FLOAT

# A product of two matrices takes a multiplication and an addition per term; its backward pass takes two products, for
# the gradients of both factors.
FLOPS, BACKWARD = 2, 2
# Number of reads and writes per logit in each trainer. Forward: written, scaled by column (2), maximum, exp (2; in
# PyTorch 4, with the subtraction of the maximum), sum. Backward: scaled by row (2) and by column (2), read by two
# products.
LOGIT_PASSES = {"mxnet": 13, "torch": 15}
# Additional ones if logits are computed again: written, scaled by column (2); in PyTorch a subtraction (2).
RECOMPUTE_PASSES = {"mxnet": 3, "torch": 5}
# Parts of the backbone's memory that every step writes and reads, in addition to its activations.
WRITTEN_AND_READ = ("parameters", "gradients", "momentum", "moments", "moving average")


class Rates(NamedTuple):
    """Peak rates of a rank; math.inf sets no limit."""

    backbone_flops: float = math.inf  # flop/s of the backbone's products, in the precision of its training
    layer_flops: float = math.inf  # flop/s of the layer's products
    memory_bandwidth: float = math.inf  # bytes/s of the computing device's memory
    bus_bandwidth: float = math.inf  # bytes/s between host and GPU, in each direction
    network_bandwidth: float = math.inf  # bytes/s of the slowest link between ranks, in each direction


class Time(NamedTuple):
    """A part of the lower bound for the time of a step."""

    name: str  # of the operation, or of the Transfer of a collective
    seconds: float  # lower bound, without what overlaps with other parts
    limit: str  # what limits it: products, memory, network or bus


def least_times(planned: Plan, rates: Rates) -> list[Time]:
    """Returns all parts that take time, for the rank with the most classes."""
    return [time for time in _times(planned, rates) if time.seconds > 0]


def _times(planned: Plan, rates: Rates) -> Iterator[Time]:
    backbone = _roofline("backbone", _backbone_work(planned), rates.backbone_flops, rates.memory_bandwidth)
    layer_work = [sum(work) for work in zip(*map(_layer_work, (planned, *planned.heads)))]
    layer = _roofline("layer", (layer_work[0], layer_work[1]), rates.layer_flops, rates.memory_bandwidth)
    yield from (backbone, layer)
    # Ranks average the gradients during the backward pass of the last micro-batch.
    last = (planned.heads or [planned])[-1].case
    backward = backbone.seconds * BACKWARD / (1 + BACKWARD) * last.batch / _items(planned)
    for transfer in planned.traffic:
        if transfer.way == "network":
            name, seconds = transfer.name, transfer.out / rates.network_bandwidth
            if name.startswith("all-reduce"):
                name, seconds = f"{name}, beyond its backward pass", seconds - backward
            yield Time(name, seconds, "network")
    bus = max(_moved(planned, "bus")) / rates.bus_bandwidth
    yield Time("copies between host and GPU, beyond computing", bus - backbone.seconds - layer.seconds, "bus")


def _roofline(name: str, work: tuple[float, float], peak_flops: float, bandwidth: float) -> Time:
    flops, nbytes = work
    seconds, limit = max((flops / peak_flops, "products"), (nbytes / bandwidth, "memory"))
    return Time(name, seconds, limit)


def _backbone_work(planned: Plan) -> tuple[float, float]:
    """Returns flop and bytes of the backbone's forward pass, backward pass and update."""
    backbone = planned.backbone
    if backbone is None:
        return 0.0, 0.0
    nbytes = _items(planned) * backbone.saved_bytes
    nbytes += sum(
        part.nbytes for part in planned.parts if part.group == "backbone" and part.name.startswith(WRITTEN_AND_READ)
    )
    products = (1 + BACKWARD) * backbone.training_products + backbone.recomputed
    return FLOPS * _items(planned) * products, 2 * nbytes


def _items(planned: Plan) -> int:
    """Returns the items of a rank in a step, of all heads."""
    cases = [planned.case, *(head.case for head in planned.heads)]
    return sum(case.gradient_acc * case.batch for case in cases)


def _layer_work(planned: Plan) -> tuple[float, float]:
    """Returns flop and bytes of the layer, without the rows of a bank outside of the GPU, which use the bus."""
    case, layer = planned.case, planned.layer
    products = 1 + BACKWARD + (not layer.keeps)
    passes = LOGIT_PASSES[case.trainer] + RECOMPUTE_PASSES[case.trainer] * (not layer.keeps)
    logits = case.gradient_acc * layer.batch * layer.sampled
    cosines = FLOAT * passes * logits * case.sub_centers
    rows = 0 if layer.elsewhere else sum(_moved(planned, "bank"))
    return FLOPS * products * logits * layer.center_width, cosines + rows


def _moved(planned: Plan, way: str) -> tuple[int, int]:
    """Returns the bytes (out, back) of all transfers along a way."""
    transfers = [transfer for transfer in planned.traffic if transfer.way == way]
    return sum(transfer.out for transfer in transfers), sum(transfer.back for transfer in transfers)
