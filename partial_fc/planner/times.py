"""How long a step takes, part by part.

    step = backbone + layer + drawing + start and transport of each collective - what of the all-reduce is hidden

Nothing of the layer overlaps: its products need the gathered features, its gradients the statistics of all ranks, the
backward pass of the backbone the reduced gradient. Only the all-reduce of the backbone's gradients runs beside
something, the backward pass that makes them.

A rank is taken to be as fast as any other: what ranks wait for a slow one is not in here, nor is reading.

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

# Of a product of two matrices: a multiplication and an addition for each. Backward multiplies twice, for the gradients
# of both factors.
FLOPS, BACKWARD = 2, 2
# Reads and writes of a logit in tiled_softmax.py. Forward: written, scaled by column (2), maximum, exp (2), sum.
# Backward: scaled by row (2) and by column (2), read by two products.
LOGIT_PASSES = 13
AGAIN_PASSES = 3  # where it is computed again: written, scaled by column
# MXNet hands on what its engine has done by so many operators at once (MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN).
BULK = 15


class Time(NamedTuple):
    """Some of the seconds of a step.

    Attributes:
        name: what takes them; collectives of the layer bear their own name in brackets, as in Transfer.
        seconds: that it takes.
        hidden: those of them that pass beside something else.
    """

    name: str
    seconds: float
    hidden: float = 0.0


def step_times(planned: Plan, machine: Machine, of_host: int) -> list[Time]:
    """All parts of a step that take time, of the rank with the most classes.

    Args:
        planned: what the step computes and moves.
        machine: on which it does.
        of_host: ranks of a host.

    Raises:
        ValueError: a host has no rank, or the bank is in files, of which no time is known.
    """
    if planned.layer.bank == "file":
        raise ValueError("no step time is known of a bank in files: ask without the network, or with another bank")
    where = spread(planned.case.ranks, of_host)
    times = [*_computing(planned, machine), *_talking(planned, machine, where)]
    return [time for time in times if time.seconds]


def seconds_of(times: list[Time]) -> float:
    """Of the whole step."""
    return sum(time.seconds - time.hidden for time in times)


# Computing --------------------------------------------------------------------------------------------


def _computing(planned: Plan, machine: Machine) -> Iterator[Time]:
    case, layer = planned.case, planned.layer
    forward, backward = backbone_seconds(planned, machine)
    yield Time("backbone, forward", forward)
    yield Time("backbone, backward and update", backward)
    products = 1 + BACKWARD + (not layer.keeps)
    flops = FLOPS * products * layer.batch * layer.sampled * case.embedding
    yield Time(f"layer: {products} products", flops / machine.layer_flops)
    passes = LOGIT_PASSES + AGAIN_PASSES * (not layer.keeps)
    yield Time("layer: passes over its logits", FLOAT * passes * layer.batch * layer.sampled / machine.memory_bandwidth)
    bandwidth = machine.bus_bandwidth if layer.elsewhere else machine.memory_bandwidth
    yield Time("layer: centers and momentum", _moved(planned, "bank") / bandwidth)
    yield Time("between host and GPU", _moved(planned, "bus") / machine.bus_bandwidth)
    yield Time("layer: drawing the sample", layer.gathered * layer.sampled * machine.draw_seconds)


def backbone_seconds(planned: Plan, machine: Machine) -> tuple[float, float]:
    """(forward, backward with the update): B images of so many products, and what each operator takes anyway.

    An operator runs once forward and about twice as long backward, so a third of its own time is forward's.
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
    return sum(move.out + move.back for move in planned.traffic if move.way == way)


# Talking ----------------------------------------------------------------------------------------------


def _talking(planned: Plan, machine: Machine, where: Spread) -> Iterator[Time]:
    beside = seconds_beside(planned, machine)
    for move in planned.traffic:
        if move.way != "network":
            continue
        kind = move.name.split()[0]
        route = (ring if machine.rings else open_mpi)(kind, move.out, where)
        transport = transport_seconds(route, machine)
        waits = start_seconds(machine, where) + delay_seconds(route, machine)
        if kind != "all-reduce":
            yield Time(move.name, waits + transport)
            continue
        # Gradients leave as backward makes them, some operators' at once, first those of the last operators, which have
        # the most parameters. What becomes ready while the first are on their way waits for a second start.
        ahead = transport + waits * (beside > 0)
        copying = 0.0 if machine.rings else route.sent / machine.inside_bandwidth
        yield Time(move.name, ahead + waits, min(beside, ahead - copying))


def seconds_beside(planned: Plan, machine: Machine) -> float:
    """From the first gradient to the last."""
    if not planned.case.network:
        return 0.0
    _, backward = backbone_seconds(planned, machine)
    return backward * max(0.0, 1 - BULK / BACKBONES[planned.case.network].operators)


def start_seconds(machine: Machine, where: Spread) -> float:
    """From ready to begun: half a cycle until Horovod looks, and its question whether all ranks are ready.

    All ranks ask in every cycle, by an all-reduce of some bits in log2 rounds, and the next cycle does not begin before
    that is done (horovod/common/controller.cc, with every name in its cache).
    """
    asking = _delay(doublings(where.ranks / where.hosts), doublings(where.hosts), machine)
    return max(machine.cycle, asking) / 2 + asking


def delay_seconds(route: Route, machine: Machine) -> float:
    """Of messages that wait for each other. One that is not eager is on its way three times: asked, answered, sent."""
    ways = 1 if route.message <= machine.eager_bytes else 3
    return ways * _delay(route.inside, route.between, machine)


def transport_seconds(route: Route, machine: Machine) -> float:
    """Of the bytes over the slowest link."""
    return max(route.sent / machine.inside_bandwidth, route.crossing / machine.network_bandwidth)


def _delay(inside: int, between: int, machine: Machine) -> float:
    return inside * machine.inside_latency + between * machine.network_latency
