"""What a launcher has told this process, before MPI or Horovod is started."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Mapping, MutableMapping, NamedTuple

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


def sum_alike(environment: MutableMapping[str, str]) -> None:
    """Makes the ranks' sums of gradients the same bits in every run, for ranks that compute on the CPU.

    Horovod joins gradients that are ready at the same time, and which those are changes from run to run. The sum of
    three or more numbers depends on where in the joined buffer they lie; that of two does not.
    """
    if place(environment).size > 2:
        environment.setdefault("HOROVOD_FUSION_THRESHOLD", "0")


def decode_threads(local_size: int) -> int:
    """Threads that each rank decodes images with: as many as it has cores, as they rest while it is ahead."""
    return min(cores_of_rank(local_size), MAX_DECODE_THREADS)


def name_interfaces(environment: MutableMapping[str, str]) -> None:
    """Tells NCCL by which interfaces this host talks to the others: it takes names only, and each host has its own.

    Reads ``PARTIAL_FC_NETWORKS``, names or subnets with commas between, as run.sh hands it to all ranks.
    """
    networks = environment.get("PARTIAL_FC_NETWORKS", "")
    if not networks or "NCCL_SOCKET_IFNAME" in environment:
        return
    import psutil

    found = [word for word in networks.split(",") if "/" not in word]
    subnets = [ipaddress.IPv4Network(word, strict=False) for word in networks.split(",") if "/" in word]
    for name, entries in psutil.net_if_addrs().items():
        addresses = [ipaddress.IPv4Address(entry.address) for entry in entries if entry.family == socket.AF_INET]
        if any(address in subnet for address in addresses for subnet in subnets):
            found.append(name)
    environment["NCCL_SOCKET_IFNAME"] = "=" + ",".join(found)
