"""The ways that collectives take between the ranks: bytes over each link, and how often a message waits for another.

NCCL's rings, and what Open MPI 4.1 does by itself for the sizes of a step on 2 to 8 ranks: neighbour exchange for the
all-gather, recursive halving for the reduce-scatter, both after each other (Rabenseifner) for the all-reduce. Of the
latter the counts of a network card's driver differ by the headers of TCP/IP alone (benchmarks/links.py).

Shapes: R ranks, H hosts, k = R / H ranks of a host.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Spread(NamedTuple):
    """Where the ranks are. Those of a host follow one another.

    Attributes:
        ranks: R.
        hosts: H.
    """

    ranks: int
    hosts: int


class Route(NamedTuple):
    """What one collective asks of the links.

    Attributes:
        sent: bytes that a rank sends.
        crossing: bytes that leave a host, which is as many as enter it.
        message: bytes of its longest message.
        inside, between: messages within hosts and between them that wait for each other.
    """

    sent: float
    crossing: float
    message: float
    inside: int
    between: int


def spread(ranks: int, of_host: int) -> Spread:
    """R ranks on hosts of so many.

    Raises:
        ValueError: a host has no rank.
    """
    if of_host < 1:
        raise ValueError(f"{of_host} ranks on a host: it must be at least 1")
    return Spread(ranks, -(-ranks // of_host))


def ring(kind: str, sent: float, where: Spread) -> Route:
    """Once round all ranks, twice for the all-reduce.

    The ring goes through the ranks of a host and on to the next host. Each of its links carries what each rank sends,
    so that a host's card carries it once, however many ranks share the card. A part of the result passes R - 1 links,
    H - 1 of them between hosts, one after the other.
    """
    rounds = 2 if kind == "all-reduce" else 1
    message = sent / max(1, rounds * (where.ranks - 1))
    crossing = sent if where.hosts > 1 else 0.0
    return Route(sent, crossing, message, rounds * (where.ranks - where.hosts), rounds * (where.hosts - 1))


def open_mpi(kind: str, sent: float, where: Spread) -> Route:
    """What Open MPI takes, which for two ranks is one message each way, as a ring's.

    Neighbour exchange: pairs swap what they have, one block first, then two with the neighbour on the other side, and
    so on in turn: R / 2 rounds, in which R blocks leave a host of two ranks or more. Halving: in round i a rank swaps
    half of what is left with the rank R / 2^i further, so that all ranks of a host send their largest messages out.
    The all-reduce halves with the nearest rank first, and goes back the same way.
    """
    ranks, of_host = where.ranks, where.ranks / where.hosts
    inside, between = doublings(of_host), doublings(where.hosts)
    block = sent / max(1, ranks - 1)
    if kind == "all-gather":
        rounds = ranks // 2
        between = 0 if where.hosts == 1 else rounds if of_host == 1 else -(-rounds // 2)
        crossing = block * (ranks if of_host > 1 else ranks - 1) if where.hosts > 1 else 0.0
        return Route(sent, crossing, min(sent, 2 * block), rounds - between, between)
    if kind == "reduce-scatter":
        return Route(sent, block * of_host * (ranks - of_host), block * ranks / 2, inside, between)
    whole = block * ranks / 2
    return Route(sent, 2 * whole * (1 - of_host / ranks), whole / 2, 2 * inside, 2 * between)


def doublings(number: float) -> int:
    """How often 1 has to be doubled to reach a number."""
    return math.ceil(math.log2(max(1, number)))
