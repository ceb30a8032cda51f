"""Measures collectives between the GPUs of a host, or between processes on a CPU, for benchmarks/gpu.py."""

import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import layer_torch
import torch
import torch.distributed as dist


def measure_links(rank: int, size: int, folder: str, backend: str, megabytes: int) -> None:
    """Measures collectives as nccl-tests does; rank 0 writes {name: (ms, GB/s per link)}."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store, timeout = f"file://{folder}/store", timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size, timeout=timeout)
    whole = torch.ones(megabytes * 250_000 // size * size, device=device)
    part, others = whole.chunk(size)[rank].clone(), (size - 1) / size
    calls = {
        "all-reduce": (lambda: dist.all_reduce(whole), 2 * others),
        "all-gather": (lambda: dist.all_gather_into_tensor(whole, part), others),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(part, whole), others),
    }
    found = {}
    for name, (call, factor) in calls.items():
        seconds = layer_torch.fastest(call, device)
        found[name] = (1e3 * seconds, factor * whole.nbytes / seconds / 1e9)
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def links(size: int, until: float, megabytes: int, device) -> str:
    with tempfile.TemporaryDirectory() as folder:
        arguments = size, folder, "nccl" if device.type == "cuda" else "gloo", megabytes
        ranks = torch.multiprocessing.spawn(measure_links, arguments, nprocs=size, join=False)
        try:
            while not ranks.join(timeout=1):
                if time.monotonic() > until + 30:
                    raise TimeoutError(f"{size} ranks did not end in time")
        finally:
            for process in ranks.processes:
                process.kill()
        found = json.loads(Path(folder, "found.json").read_text())
    return "; ".join(f"{name} {ms:.2f} ms, {rate:.0f} GB/s" for name, (ms, rate) in found.items())
