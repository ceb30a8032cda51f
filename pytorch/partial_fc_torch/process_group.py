"""Connects the processes that a launcher such as torchrun has started, and disconnects them."""

import datetime
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from partial_fc.distributed.env import rank_info
from partial_fc.distributed.watchdog import start_limit

from .collectives import default_collectives, gloo_beside, uses_gpu
from .device_defaults import gpu_of_rank, require_different_gpus
from .errors import error_message

POLL = 0.2  # seconds between two looks at what rank 0 has written


def start_process_group(backend: str, timeout: float) -> None:
    """Connects the ranks.

    Args:
        backend: see uses_gpu.
        timeout: seconds without a step that end the job.

    Raises:
        ValueError: A variable of the launcher is missing, or two ranks have the same GPU.
        OSError: The ranks cannot reach each other, or rank 0 cannot listen at the address of the launcher.
    """
    on_gpu = uses_gpu(backend)
    if on_gpu:
        torch.cuda.set_device(gpu_of_rank(rank_info(os.environ).local_rank, torch.cuda.device_count()))
    limit = datetime.timedelta(seconds=collective_limit(timeout, os.environ))
    try:
        store, rank, size = _rendezvous(limit)
        attempt = _store_of_attempt(store, rank, size, limit.total_seconds())
        kind = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(kind, store=attempt, rank=rank, world_size=size, timeout=limit)
    except dist.DistError as error:
        address = "{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
        raise OSError(f"cannot connect the ranks at {address}: {error_message(error)}") from error
    if on_gpu:
        require_own_gpu(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))


def require_own_gpu(uuid: str) -> None:
    """Raises ValueError on every rank if two of them have the same GPU (all-gather ``gpus``)."""
    # With one GPU visible to each rank, nothing else shows that it is always the same one. NCCL would find it later,
    # and without the names of the ranks.
    require_different_gpus(default_collectives.gather_object("gpus", (socket.gethostname(), uuid)))


def _rendezvous(limit: datetime.timedelta) -> tuple[dist.Store, int, int]:
    """Returns a store that all ranks share, the rank and the size.

    The store has the addresses of the ranks, to which they send pickles, and it takes commands from whoever connects.
    So that of one host is a file which no other user can read or write, not a port of torchrun. torchrun tells each
    rank, whatever program is around it, a file for its error in a folder of this attempt, below one of mode 0700.
    """
    ranks = rank_info(os.environ)
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    folder = os.path.dirname(os.path.dirname(error_file))
    own = error_file == os.path.join(folder, str(ranks.local_rank), "error.json") and os.path.isdir(folder)
    if ranks.size > ranks.local_size or not own:  # other launchers name no file, nor does torchrun --log-dir=/dev/null
        return next(dist.rendezvous("env://", timeout=limit))
    store = dist.FileStore(os.path.join(folder, "store"))
    store.set_timeout(limit)
    return store, ranks.rank, ranks.size


def collective_limit(timeout: float, environment: Mapping[str, str]) -> float:
    """Seconds that a collective may take: longer than the watchdog waits, which can name the rank that is missing."""
    return 2 * max(timeout, start_limit(environment)) + 60


def end_process_group() -> None:
    """Ends the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
        gloo_beside.cache_clear()  # a group that is still referenced is not ended


def _store_of_attempt(store: dist.Store, rank: int, size: int, seconds: float) -> dist.Store:
    """Returns a part of the store that only the processes of this attempt use, or raises DistError after ``seconds``.

    torchrun may keep its store when it starts the processes again, with the addresses of processes that have ended,
    where Gloo would wait. Its numbers of restarts differ between the hosts of an elastic job. So rank 0 draws a name,
    and a rank accepts the name once rank 0 has answered it.
    """
    own = secrets.token_hex(8)
    if rank == 0:
        store.set("attempt", own)
        greetings = [f"{own}/{other}" for other in range(1, size)]
        try:
            store.wait(greetings, datetime.timedelta(seconds=seconds))
        except RuntimeError as error:  # a file has no error of its own
            raise dist.DistNetworkError(f"not all ranks have come within {seconds:.0f} s: {error}") from error
        store.set(f"{own}/answer", json.dumps([store.get(name).decode() for name in greetings]))
        return dist.PrefixStore(own, store)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if store.check(["attempt"]):
            name = store.get("attempt").decode()  # perhaps that of an earlier attempt
            store.set(f"{name}/{rank}", own)
            if store.check([f"{name}/answer"]) and own in json.loads(store.get(f"{name}/answer")):
                return dist.PrefixStore(name, store)
        time.sleep(POLL)
    raise dist.DistNetworkError(f"rank 0 has not answered within {seconds:.0f} s")
