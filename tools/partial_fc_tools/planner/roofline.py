"""The least time of a step: its products and bytes, divided by the peak rates of a device and its links.

    step >= backbone + layer + collectives, less what overlaps

Computing takes at least as long as its products at their peak rate, and as its bytes at the bandwidth of the memory.
docs/scale.md says what overlaps, and what is not counted.

Shapes: B local batch, G global batch, E embedding, S sampled classes of a rank.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from . import Plan
from .case import FLOAT

# A product of two matrices takes a multiplication and an addition per term. Its backward pass takes two products, for
# the gradients of both factors.
FLOPS, BACKWARD = 2, 2
# Reads and writes of a logit in each trainer. Forward: written, scaled by column (2), maximum, exp (2; in PyTorch 4,
# with the subtraction of the maximum), sum. Backward: scaled by row (2) and by column (2), read by two products.
LOGIT_PASSES = {"mxnet": 13, "torch": 15}
# More where it is computed again: written, scaled by column (2); in PyTorch one more subtraction.
RECOMPUTE_PASSES = {"mxnet": 3, "torch": 5}
# Parts of the backbone's memory that every step writes and reads, besides its activations.
WRITTEN_AND_READ = ("parameters", "gradients", "momentum", "moments", "moving average")


class Rates(NamedTuple):
    """Peak rates of a rank. A rate of math.inf sets no limit."""

    backbone_flops: float = math.inf  # flop/s of the backbone's products, in the precision of its training
    layer_flops: float = math.inf  # flop/s of the layer's products
    memory_bandwidth: float = math.inf  # bytes/s of the memory of the device that computes
    bus_bandwidth: float = math.inf  # bytes/s between host and GPU, in each direction
    network_bandwidth: float = math.inf  # bytes/s of the slowest link between ranks, in each direction


class Time(NamedTuple):
    """A part of the least time of a step."""

    name: str  # the operation; a collective has the name of its Transfer
    seconds: float  # its least time, without what overlaps with other parts
    limit: str  # what takes this time: products, memory, network or bus


def least_times(planned: Plan, rates: Rates) -> list[Time]:
    """Returns all parts of a step that take time, for the rank with the most classes."""
    return [time for time in _times(planned, rates) if time.seconds > 0]


def _times(planned: Plan, rates: Rates) -> Iterator[Time]:
    backbone = _roofline("backbone", _backbone_work(planned), rates.backbone_flops, rates.memory_bandwidth)
    layer = _roofline("layer", _layer_work(planned), rates.layer_flops, rates.memory_bandwidth)
    yield from (backbone, layer)
    # Ranks average the gradients in the backward pass of the last micro-batch.
    backward = backbone.seconds * BACKWARD / (1 + BACKWARD) / planned.case.gradient_acc
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
    """Flop and bytes of the forward pass, the backward pass and the update."""
    case, backbone = planned.case, planned.backbone
    if backbone is None:
        return 0.0, 0.0
    micro_batches = case.gradient_acc
    nbytes = micro_batches * case.batch * backbone.saved_bytes
    nbytes += sum(
        part.nbytes for part in planned.parts if part.group == "backbone" and part.name.startswith(WRITTEN_AND_READ)
    )
    products = (1 + BACKWARD) * backbone.trained + backbone.recomputed
    return FLOPS * micro_batches * case.batch * products, 2 * nbytes


def _layer_work(planned: Plan) -> tuple[float, float]:
    """Flop and bytes of the layer; the rows of a bank elsewhere pass the bus instead."""
    case, layer = planned.case, planned.layer
    products = 1 + BACKWARD + (not layer.keeps)
    passes = LOGIT_PASSES[case.trainer] + RECOMPUTE_PASSES[case.trainer] * (not layer.keeps)
    logits = case.gradient_acc * layer.batch * layer.sampled
    rows = 0 if layer.elsewhere else sum(_moved(planned, "bank"))
    return FLOPS * products * logits * case.embedding, FLOAT * passes * logits + rows


def _moved(planned: Plan, way: str) -> tuple[int, int]:
    """Bytes (out, back) of all transfers of this way."""
    transfers = [transfer for transfer in planned.traffic if transfer.way == way]
    return sum(transfer.out for transfer in transfers), sum(transfer.back for transfer in transfers)
