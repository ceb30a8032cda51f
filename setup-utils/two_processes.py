"""Tests an installation: collectives of torch.distributed over Gloo, on every process that torchrun starts."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((3,), rank + 1.0)
    dist.all_reduce(total)
    assert total.tolist() == [size * (size + 1) / 2] * 3, total
    rows = [torch.empty(2) for _ in range(size)]
    dist.all_gather(rows, torch.full((2,), float(rank)))
    assert torch.stack(rows).tolist() == [[float(other)] * 2 for other in range(size)], rows
    print(f"rank {rank} of {size}: allreduce and allgather are correct")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
