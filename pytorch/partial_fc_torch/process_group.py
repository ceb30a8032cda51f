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
from partial_fc.distributed.watchdog import CONNECT_TIMEOUT, start_limit

from .collectives import default_collectives, gloo_group, uses_gpu
from .device_defaults import gpu_of_rank, require_different_gpus
from .errors import error_message

POLL = 0.2  # seconds between two reads of what rank 0 has written


def start_process_group(backend: str, timeout: float) -> None:
    """Connects the ranks.

    Args:
        backend: see uses_gpu.
        timeout: seconds without a step after which the job ends.

    Raises:
        ValueError: A variable of the launcher is missing, or two ranks have the same GPU.
        OSError: The ranks cannot reach each other, or rank 0 cannot listen at the launcher's address.
    """
    on_gpu = uses_gpu(backend)
    if on_gpu:
        torch.cuda.set_device(gpu_of_rank(rank_info(os.environ).local_rank, torch.cuda.device_count()))
    limit = datetime.timedelta(seconds=collective_limit(timeout, os.environ))
    try:
        store, rank, size = _rendezvous(datetime.timedelta(seconds=CONNECT_TIMEOUT))
        attempt = _store_of_attempt(store, rank, size, CONNECT_TIMEOUT)
        kind = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(kind, store=attempt, rank=rank, world_size=size, timeout=limit)
    except dist.DistError as error:
        address = "{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
        raise OSError(f"cannot connect the ranks at {address}: {error_message(error)}") from error
    if on_gpu:
        # If each rank sees one GPU, only the UUIDs show whether it is always the same one. NCCL would notice later, and
        # without naming the ranks.
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        require_different_gpus(default_collectives.gather_object("gpus", (socket.gethostname(), uuid)))


def _rendezvous(limit: datetime.timedelta) -> tuple[dist.Store, int, int]:
    """Returns a store that all ranks share, this rank, and the number of ranks.

    The store holds the addresses to which ranks send pickles, and executes commands of whoever connects. On one host it
    is therefore a file that no other user can read or write, instead of torchrun's port. torchrun gives each rank
    an error file in a folder of this attempt, inside a folder of mode 0700, even if a wrapper runs the rank.
    """
    ranks = rank_info(os.environ)
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    folder = os.path.dirname(os.path.dirname(error_file))
    started_by_torchrun = error_file == os.path.join(folder, str(ranks.local_rank), "error.json") and os.path.isdir(
        folder
    )
    # Other launchers set no error file, nor does torchrun --log-dir=/dev/null.
    if ranks.size > ranks.local_size or not started_by_torchrun:
        return next(dist.rendezvous("env://", timeout=limit))
    store = dist.FileStore(os.path.join(folder, "store"))
    store.set_timeout(limit)
    return store, ranks.rank, ranks.size


def collective_limit(timeout: float, environment: Mapping[str, str]) -> float:
    """Returns the timeout of a collective in seconds.

    It is longer than the watchdog's, so that the watchdog ends the job first: only it can name the missing rank.
    """
    return 2 * max(timeout, start_limit(environment)) + 60


def end_process_group() -> None:
    """Destroys the process group if one exists."""
    if dist.is_initialized():
        dist.destroy_process_group()
        gloo_group.cache_clear()  # a group that is still referenced is not destroyed


def _store_of_attempt(store: dist.Store, rank: int, size: int, seconds: float) -> dist.Store:
    """Returns a part of the store that only the processes of this attempt use.

    When torchrun restarts the processes it may keep its store, with the addresses of the previous processes, to which
    Gloo would try to connect. torchrun's count of restarts cannot tell the attempts apart: in an elastic job it differs
    between hosts. So rank 0 draws a name for the attempt. Each other rank writes a token under the name that it finds,
    and accepts the name when rank 0 has answered with this token.

    Raises:
        DistError: A rank is missing after ``seconds``.
    """
    token = secrets.token_hex(8)
    if rank == 0:
        store.set("attempt", token)
        greetings = [f"{token}/{other}" for other in range(1, size)]
        try:
            store.wait(greetings, datetime.timedelta(seconds=seconds))
        except RuntimeError as error:  # the file store has no error class of its own
            raise dist.DistNetworkError(f"timed out after {seconds:.0f} s waiting for all ranks: {error}") from error
        store.set(f"{token}/answer", json.dumps([store.get(name).decode() for name in greetings]))
        return dist.PrefixStore(token, store)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if store.check(["attempt"]):
            name = store.get("attempt").decode()  # possibly of an earlier attempt
            store.set(f"{name}/{rank}", token)
            if store.check([f"{name}/answer"]) and token in json.loads(store.get(f"{name}/answer")):
                return dist.PrefixStore(name, store)
        time.sleep(POLL)
    raise dist.DistNetworkError(f"timed out after {seconds:.0f} s waiting for rank 0")
