"""The environment variables of a rank, before MPI, Horovod or torch.distributed is started."""

import os
import shutil
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import NamedTuple

from partial_fc.utils.cores import usable_cores

MAX_DECODE_THREADS = 8  # of an automatic choice: some 40,000 images/s, more than one GPU consumes
SHARED_BYTES = 16 << 20  # of /dev/shm that Open MPI uses for a rank, at most


class RankInfo(NamedTuple):
    """The rank of this process and the size of the job; rank 0 of 1 without a launcher."""

    rank: int  # of this process in the job
    size: int  # the number of ranks of the job
    local_rank: int  # of this process on its host
    local_size: int  # the number of ranks on this host


def _fields(prefix: str) -> tuple[str, ...]:
    return tuple(prefix + field.upper() for field in RankInfo._fields)


_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# By launcher: a variable that it alone sets, and those with the fields of RankInfo. torchrun comes first, because
# mpirun may start one torchrun on each host; its plain names come last, because job systems set them around other
# launchers.
_LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", _TORCH),  # torchrun, python -m torch.distributed.launch
    ("HOROVOD_RANK", _fields("HOROVOD_")),  # horovodrun over Gloo
    ("OMPI_COMM_WORLD_RANK", _fields("OMPI_COMM_WORLD_")),  # mpirun, horovodrun over MPI
    ("LOCAL_WORLD_SIZE", _TORCH),  # other launchers of PyTorch
)


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """Reads the rank and the size of the job from the launcher's variables."""
    for marker, names in _LAUNCHERS:
        if all(name in environment for name in (marker, *names)):
            return RankInfo(*(int(environment[name]) for name in names))
    return RankInfo(0, 1, 0, 1)


def share_cores(environment: MutableMapping[str, str]) -> int:
    """Divides the cores of the host between its ranks, for every numeric library that is loaded after this call.

    A number of threads that the user has set stays. Call it before importing MXNet or OpenCV: they read it once.

    Returns:
        The number of threads of this rank.
    """
    environment.setdefault("OMP_NUM_THREADS", str(cores_of_rank(rank_info(environment).local_size)))
    return int(environment["OMP_NUM_THREADS"])


def cores_of_rank(local_size: int) -> int:
    """Returns the cores of this host for each of its ``local_size`` ranks: at least 1, at most those it is bound to."""
    own = usable_cores()
    try:
        launcher = usable_cores(os.getppid())  # may use the cores of all ranks, even if each is bound
    except OSError:
        launcher = own
    return max(1, min(own, launcher // local_size))


def use_shared_memory(environment: MutableMapping[str, str]) -> None:
    """Lets the ranks of one host talk through shared memory alone, if there is enough. Call it before MPI starts.

    Open MPI's TCP listens on all interfaces, whatever btl_tcp_if_include is, and asks nobody for a password. A
    transport that the user has chosen stays.
    """
    ranks = rank_info(environment)
    default, needed = "^openib", SHARED_BYTES * ranks.local_size  # the former is that of setup-utils/env.sh
    if ranks.size == ranks.local_size and environment.get("OMPI_MCA_btl", default) == default:
        with suppress(OSError):
            if shutil.disk_usage("/dev/shm").free >= needed:
                environment["OMPI_MCA_btl"] = f"{default},tcp"
    if ranks.size == 1:  # else MPI would start a daemon, to start more ranks later
        environment.setdefault("OMPI_MCA_ess_singleton_isolated", "1")


def deterministic_allreduce(environment: MutableMapping[str, str]) -> None:
    """Makes all-reduced gradients bit-identical from run to run, for ranks that compute on the CPU.

    Horovod fuses gradients that are ready at the same time, and which ones are ready differs from run to run. The
    rounded sum of three or more numbers depends on their place in the fused buffer; the sum of two does not.
    """
    if rank_info(environment).size > 2:
        environment.setdefault("HOROVOD_FUSION_THRESHOLD", "0")


def decode_threads(local_size: int) -> int:
    """Returns the threads that each rank decodes images with: one per core, as they idle while the rank is ahead."""
    return min(cores_of_rank(local_size), MAX_DECODE_THREADS)
