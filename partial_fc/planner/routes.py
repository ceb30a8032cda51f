"""The algorithms of collectives: bytes over each link, and the number of messages that wait for each other.

NCCL's rings, and the algorithms that Open MPI 4.1 chooses for the sizes of a step on 2 to 8 ranks: neighbor exchange
for the all-gather, recursive halving for the reduce-scatter, both in sequence (Rabenseifner) for the all-reduce. The
counts of a network card's driver differ from those of Open MPI by the headers of TCP/IP only (benchmarks/links.py).

Shapes: R ranks, H hosts, k = R / H ranks of a host.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Spread(NamedTuple):
    """The placement of the ranks. Ranks of a host are consecutive.

    Attributes:
        ranks: R.
        hosts: H.
    """

    ranks: int
    hosts: int


class Route(NamedTuple):
    """The load of one collective on the links.

    Attributes:
        sent: bytes that a rank sends.
        crossing: bytes that leave a host; as many enter it.
        message: bytes of the longest message.
        inside, between: sequential messages within hosts and between them.
    """

    sent: float
    crossing: float
    message: float
    inside: int
    between: int


def spread(ranks: int, of_host: int) -> Spread:
    """Returns the placement of R ranks on hosts of `of_host` ranks.

    Raises:
        ValueError: `of_host` is below 1.
    """
    if of_host < 1:
        raise ValueError(f"{of_host} ranks on a host, expected at least 1")
    return Spread(ranks, -(-ranks // of_host))


def ring(kind: str, sent: float, where: Spread) -> Route:
    """Returns the load of NCCL's ring: one round over all ranks, two for the all-reduce.

    The ring visits the ranks of a host and then the next host. Each of its links carries what each rank sends, so that
    a host's card carries it once, however many ranks share the card. A part of the result passes R - 1 links, H - 1 of
    them between hosts, in sequence.
    """
    rounds = 2 if kind == "all-reduce" else 1
    message = sent / max(1, rounds * (where.ranks - 1))
    crossing = sent if where.hosts > 1 else 0.0
    return Route(sent, crossing, message, rounds * (where.ranks - where.hosts), rounds * (where.hosts - 1))


def open_mpi(kind: str, sent: float, where: Spread) -> Route:
    """Returns the load of Open MPI's algorithms. For two ranks they are one message each way, like a ring.

    Neighbor exchange: pairs exchange one block first, then two blocks with the neighbor on the other side, and so on
    alternately: R / 2 rounds, in which R blocks leave a host of two ranks or more. Halving: in round i a rank exchanges
    half of the remaining data with the rank at distance R / 2^i, so that all ranks of a host send their largest
    messages to other hosts. The all-reduce halves with the nearest rank first, and returns along the same path.
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
    total = block * ranks / 2
    return Route(sent, 2 * total * (1 - of_host / ranks), total / 2, 2 * inside, 2 * between)


def doublings(number: float) -> int:
    """Number of doublings from 1 to at least `number`."""
    return math.ceil(math.log2(max(1, number)))
