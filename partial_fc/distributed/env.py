"""What a launcher has told this process, before MPI or Horovod is started."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

MAX_DECODE_THREADS = 8  # of an automatic choice: some 40,000 images/s, more than any one GPU takes


class Place(NamedTuple):
    """This process among those of the job. Alone it is rank 0 of 1."""

    rank: int
    size: int
    local_rank: int
    local_size: int


# horovodrun over Gloo sets the first family, Open MPI's mpirun (and horovodrun over MPI) the second.
_FAMILIES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


def place(environment: Mapping[str, str]) -> Place:
    """Where this process stands, from the launcher's variables."""
    for names in _FAMILIES:
        if names[0] in environment:
            return Place(*(int(environment[name]) for name in names))
    return Place(0, 1, 0, 1)


def share_cores(environment: MutableMapping[str, str]) -> int:
    """Divides the host's cores between its ranks, for every numeric library that starts after this.

    A number of threads that the user has set stays. Call it before MXNet or OpenCV is imported: they read it once.

    Returns:
        Threads of this rank.
    """
    environment.setdefault("OMP_NUM_THREADS", str(cores_of_rank(place(environment).local_size)))
    return int(environment["OMP_NUM_THREADS"])


def cores_of_rank(local_size: int) -> int:
    """Cores of this host for each of its ``local_size`` ranks, 1 at least; no more than this one is bound to."""
    mine = len(os.sched_getaffinity(0))
    try:
        launcher = len(os.sched_getaffinity(os.getppid()))  # has those of all ranks, where each is bound to some
    except OSError:
        launcher = mine
    return max(1, min(mine, launcher // local_size))


def deterministic_allreduce(environment: MutableMapping[str, str]) -> None:
    """Makes the ranks' sums of gradients the same bits in every run, for ranks that compute on the CPU.

    Horovod joins gradients that are ready at the same time, and which those are changes from run to run. The sum of
    three or more numbers depends on where in the joined buffer they lie; that of two does not.
    """
    if place(environment).size > 2:
        environment.setdefault("HOROVOD_FUSION_THRESHOLD", "0")


def decode_threads(local_size: int) -> int:
    """Threads that each rank decodes images with: as many as it has cores, as they rest while it is ahead."""
    return min(cores_of_rank(local_size), MAX_DECODE_THREADS)


def networks(environment: Mapping[str, str]) -> list[str]:
    """The networks that the launcher has chosen, names of interfaces or subnets; none where it leaves that open."""
    # mpirun hands its parameters to the ranks; horovodrun sets the second over Gloo.
    words = environment.get("OMPI_MCA_btl_tcp_if_include") or environment.get("HOROVOD_GLOO_IFACE") or ""
    return [word for word in words.split(",") if word]


def addresses_in(networks: Sequence[str]) -> dict[str, list[str]]:
    """Interface -> its IPv4 addresses in these networks, or all but the loopback's where none is named.

    Raises:
        ValueError: this host has no interface in any of them, or one is no subnet.
    """
    import psutil

    here = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    if not networks:
        kept = {name: [one for one in found if not one.startswith("127.")] for name, found in here.items()}
        return {name: found for name, found in kept.items() if found}
    chosen: dict[str, list[str]] = {}
    for word in networks:
        chosen.update(_in_subnet(word, here) if "/" in word else {word: here[word]} if word in here else {})
    if not chosen:  # hosts of several subnets have an interface in one of them each
        known = ", ".join(" ".join([name, *addresses]) for name, addresses in here.items())
        raise ValueError(f"this host has no interface in the network {','.join(networks)}, but: {known}")
    return chosen


def _in_subnet(word: str, here: Mapping[str, list[str]]) -> dict[str, list[str]]:
    try:
        subnet = ipaddress.IPv4Network(word, strict=False)
    except ValueError as error:
        raise ValueError(f"{word} is no subnet such as 10.0.0.0/24: {error}") from None
    inside = {name: [one for one in found if ipaddress.IPv4Address(one) in subnet] for name, found in here.items()}
    return {name: found for name, found in inside.items() if found}


def name_interfaces(environment: MutableMapping[str, str]) -> None:
    """Tells NCCL by which interfaces this host talks to the others: it takes names only, and each host has its own.

    Raises:
        ValueError: this host has none in the networks that mpirun was told.
    """
    chosen = networks(environment)
    if chosen and "NCCL_SOCKET_IFNAME" not in environment:
        environment["NCCL_SOCKET_IFNAME"] = "=" + ",".join(addresses_in(chosen))
