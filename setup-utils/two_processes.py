"""Tests an installation: collectives over Gloo between the processes that pytorch/launch.py starts."""

import os

import torch
import torch.distributed as dist

from partial_fc.distributed.interfaces import set_loopback_interface
from partial_fc_torch.process_group import end_process_group, start_process_group


def main() -> None:
    set_loopback_interface(os.environ)
    start_process_group("gloo", timeout=60)
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((3,), rank + 1.0)
    dist.all_reduce(total)
    if total.tolist() != [size * (size + 1) / 2] * 3:
        raise SystemExit(f"rank {rank} of {size}: allreduce gave {total}")
    rows = [torch.empty(2) for _ in range(size)]
    dist.all_gather(rows, torch.full((2,), float(rank)))
    if torch.stack(rows).tolist() != [[float(other)] * 2 for other in range(size)]:
        raise SystemExit(f"rank {rank} of {size}: allgather gave {rows}")
    print(f"rank {rank} of {size}: allreduce and allgather are correct")
    end_process_group()


if __name__ == "__main__":
    main()
