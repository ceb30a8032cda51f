"""Environment variables of a rank, read and set before MPI, Horovod or torch.distributed starts."""

import os
import shutil
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import NamedTuple

from partial_fc.utils.cores import usable_cores

MAX_DECODE_THREADS = 8  # limit of the default: about 40,000 images/s, more than one GPU consumes
SHARED_BYTES = 16 << 20  # the most that a rank uses of /dev/shm under Open MPI


class RankInfo(NamedTuple):
    """The rank of this process and the size of the job; rank 0 of 1 without a launcher."""

    rank: int  # rank of this process in the job
    size: int  # number of ranks in the job
    local_rank: int  # index of this process on its host
    local_size: int  # number of ranks on this host


_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# For each launcher, a variable that only it sets, and the variables with the fields of RankInfo. torchrun comes first,
# because mpirun may start one torchrun per host. PyTorch's plain names come last: job systems also set them.
_LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", _TORCH),  # torchrun, python -m torch.distributed.launch
    ("HOROVOD_RANK", [f"HOROVOD_{name}" for name in _MPI]),  # horovodrun over Gloo
    ("OMPI_COMM_WORLD_RANK", [f"OMPI_COMM_WORLD_{name}" for name in _MPI]),  # mpirun, horovodrun over MPI
    ("LOCAL_WORLD_SIZE", _TORCH),  # other launchers of PyTorch
)


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """Returns the rank and the size of the job from the launcher's variables."""
    for marker, names in _LAUNCHERS:
        if all(name in environment for name in (marker, *names)):
            return RankInfo(*(int(environment[name]) for name in names))
    return RankInfo(0, 1, 0, 1)


def share_cores(environment: MutableMapping[str, str]) -> int:
    """Sets OMP_NUM_THREADS, unless it is set, to this rank's share of the host's cores, and returns its value.

    Call it before importing NumPy, MXNet or OpenCV, which read the variable only once.
    """
    environment.setdefault("OMP_NUM_THREADS", str(cores_of_rank(rank_info(environment).local_size)))
    return int(environment["OMP_NUM_THREADS"])


def cores_of_rank(local_size: int) -> int:
    """Returns the cores per rank on a host with ``local_size`` ranks: at least 1, at most those it is bound to."""
    cores = usable_cores()
    try:
        launcher_cores = usable_cores(os.getppid())  # the launcher is not bound, even if it binds each rank
    except OSError:
        launcher_cores = cores
    return max(1, min(cores, launcher_cores // local_size))


def use_shared_memory(environment: MutableMapping[str, str]) -> None:
    """Makes the ranks of a single host communicate through shared memory only. Call it before MPI starts.

    Open MPI's TCP transport listens on all interfaces, whatever btl_tcp_if_include is, and without authentication. It
    stays enabled if the user has chosen a transport, or if /dev/shm is too small.
    """
    ranks = rank_info(environment)
    default, needed = "^openib", SHARED_BYTES * ranks.local_size  # setup-utils/env.sh sets this default
    if ranks.size == ranks.local_size and environment.get("OMPI_MCA_btl", default) == default:
        with suppress(OSError):
            if shutil.disk_usage("/dev/shm").free >= needed:
                environment["OMPI_MCA_btl"] = f"{default},tcp"
    if ranks.size == 1:  # without this setting MPI starts a daemon, to be able to add ranks later
        environment.setdefault("OMPI_MCA_ess_singleton_isolated", "1")


def deterministic_allreduce(environment: MutableMapping[str, str]) -> None:
    """Makes all-reduced gradients bit-identical between runs, for ranks that compute on the CPU.

    Horovod fuses gradients that are ready at the same time, which differs between runs. The rounding of a sum over
    three or more ranks depends on the position in the fused buffer; a sum of two numbers is always the same.
    """
    if rank_info(environment).size > 2:
        environment.setdefault("HOROVOD_FUSION_THRESHOLD", "0")


def decode_threads(local_size: int) -> int:
    """Returns the default number of image decoding threads per rank: one per core, at most MAX_DECODE_THREADS."""
    return min(cores_of_rank(local_size), MAX_DECODE_THREADS)
