"""The time of a step, part by part.

    step = backbone + layer + sampling + start and transport of each collective - hidden part of the all-reduce

Nothing of the layer overlaps: its products need the gathered features, its gradients the statistics of all ranks, the
backward pass of the backbone the reduced gradient. Only the all-reduce of the backbone's gradients overlaps, with the
backward pass that computes them.

All ranks are assumed to be equally fast; waiting for slow ranks and reading images are not included.

Shapes: B local batch, R ranks, H hosts, G = B*R global batch, E embedding, S sampled classes of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from . import Plan
from .backbones import BACKBONES
from .case import FLOAT
from .machine import Machine
from .routes import Route, Spread, doublings, open_mpi, ring, spread

# A product of two matrices takes a multiplication and an addition per term. Its backward pass takes two products, for
# the gradients of both factors.
FLOPS, BACKWARD = 2, 2
# Reads and writes of a logit in each trainer's tiled_softmax.py. Forward: written, scaled by column (2), maximum, exp
# (2; in PyTorch 4, with the subtraction of the maximum), sum. Backward: scaled by row (2) and by column (2), read by
# two products.
LOGIT_PASSES = {"mxnet": 13, "torch": 15}
# More where it is computed again: written, scaled by column (2); in PyTorch one more subtraction.
RECOMPUTE_PASSES = {"mxnet": 3, "torch": 5}
# Operators that MXNet's engine runs in bulk (MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN). PyTorch sends a bucket of gradients
# when it is full; the first one is small.
BULK = {"mxnet": 15, "torch": 0}


class Time(NamedTuple):
    """A part of the time of a step.

    Attributes:
        name: the operation; collectives of the layer have their name in parentheses, as in Transfer.
        seconds: its time.
        hidden: the seconds of it that overlap with another part.
    """

    name: str
    seconds: float
    hidden: float = 0.0


def step_times(planned: Plan, machine: Machine, of_host: int) -> list[Time]:
    """Returns all parts of a step that take time, for the rank with the most classes.

    Args:
        planned: what the step computes and moves.
        machine: the host and its network.
        of_host: ranks of a host.

    Raises:
        ValueError: `of_host` is below 1, or the bank is in files, whose times are not modeled.
    """
    if planned.layer.bank == "file":
        raise ValueError("step times of a bank in files are not modeled: leave out --network-gbit, or change --bank")
    where = spread(planned.case.ranks, of_host)
    times = [*_compute_times(planned, machine), *_communication_times(planned, machine, where)]
    return [time for time in times if time.seconds]


def seconds_of(times: list[Time]) -> float:
    """Seconds of the whole step."""
    return sum(time.seconds - time.hidden for time in times)


# Computation -----------------------------------------------------------------------------------------


def _compute_times(planned: Plan, machine: Machine) -> Iterator[Time]:
    case, layer = planned.case, planned.layer
    forward, backward = backbone_seconds(planned, machine)
    yield Time("backbone, forward", forward)
    yield Time("backbone, backward and update", backward)
    products = 1 + BACKWARD + (not layer.keeps)
    flops = FLOPS * products * layer.batch * layer.sampled * case.embedding
    yield Time(f"layer: {products} products", flops / machine.layer_flops)
    passes = LOGIT_PASSES[case.trainer] + RECOMPUTE_PASSES[case.trainer] * (not layer.keeps)
    yield Time("layer: passes over its logits", FLOAT * passes * layer.batch * layer.sampled / machine.memory_bandwidth)
    bandwidth = machine.bus_bandwidth if layer.elsewhere else machine.memory_bandwidth
    # PyTorch's thread for centers on the host works while the backbone computes.
    free = forward + backward if case.trainer == "torch" and layer.elsewhere else 0.0
    for name, moved in (
        ("layer: centers and momentum", _moved(planned, "bank") / bandwidth),
        ("between host and GPU", _moved(planned, "bus") / machine.bus_bandwidth),
    ):
        hidden = min(moved, free)
        free -= hidden
        yield Time(name, moved, hidden)
    yield Time("layer: sampling", layer.gathered * layer.sampled * machine.draw_seconds)


def backbone_seconds(planned: Plan, machine: Machine) -> tuple[float, float]:
    """Returns seconds of (forward, backward with the update): products of B images, and the overhead of operators.

    The backward pass of an operator takes about twice its forward pass, so a third of its overhead is the forward's.
    """
    case = planned.case
    if not case.network:
        return 0.0, 0.0
    backbone = BACKBONES[case.network]
    flops = FLOPS * case.batch * backbone.multiplications(case.embedding)
    rate = machine.half_flops if case.fp16 else machine.backbone_flops
    forward = flops / rate + backbone.operators * machine.operator_seconds / (1 + BACKWARD)
    return forward, BACKWARD * forward


def _moved(planned: Plan, way: str) -> int:
    return sum(transfer.out + transfer.back for transfer in planned.traffic if transfer.way == way)


# Communication -----------------------------------------------------------------------------------------


def _communication_times(planned: Plan, machine: Machine, where: Spread) -> Iterator[Time]:
    overlap = overlap_seconds(planned, machine)
    for transfer in planned.traffic:
        if transfer.way != "network":
            continue
        kind = transfer.name.split()[0]
        route = (ring if machine.rings else open_mpi)(kind, transfer.out, where)
        transport = transport_seconds(route, machine)
        waits = start_seconds(machine, where) + delay_seconds(route, machine)
        if kind != "all-reduce":
            yield Time(transfer.name, waits + transport)
            continue
        # Gradients are sent as the backward pass computes them, first those of the last operators, which have the most
        # parameters. Those that become ready meanwhile are sent by a second collective.
        first = transport + waits * (overlap > 0)
        copying = 0.0 if machine.rings else route.sent / machine.inside_bandwidth
        yield Time(transfer.name, first + waits, min(overlap, first - copying))


def overlap_seconds(planned: Plan, machine: Machine) -> float:
    """Seconds of the backward pass from the first gradient to the last."""
    if not planned.case.network:
        return 0.0
    _, backward = backbone_seconds(planned, machine)
    return backward * max(0.0, 1 - BULK[planned.case.trainer] / BACKBONES[planned.case.network].operators)


def start_seconds(machine: Machine, where: Spread) -> float:
    """Seconds until a ready collective starts: half a cycle of Horovod, and its negotiation.

    All ranks negotiate in every cycle, by an all-reduce of some bits in log2 rounds, and the next cycle does not begin
    before that is done (horovod/common/controller.cc, with every name in its cache).
    """
    if not machine.cycle:
        return 0.0
    negotiation = _delay(doublings(where.ranks / where.hosts), doublings(where.hosts), machine)
    return max(machine.cycle, negotiation) / 2 + negotiation


def delay_seconds(route: Route, machine: Machine) -> float:
    """Seconds of latency of the sequential messages. A rendezvous adds a request and an answer to each."""
    ways = 1 if route.message <= machine.eager_bytes else 3
    return ways * _delay(route.inside, route.between, machine)


def transport_seconds(route: Route, machine: Machine) -> float:
    """Seconds of the bytes over the slowest link."""
    return max(route.sent / machine.inside_bandwidth, route.crossing / machine.network_bandwidth)


def _delay(inside: int, between: int, machine: Machine) -> float:
    return inside * machine.inside_latency + between * machine.network_latency
