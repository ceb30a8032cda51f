"""Tests an installation: Horovod's collectives on MXNet arrays through MPI, on every rank."""

import horovod.mxnet as hvd
import mxnet as mx
from mpi4py import MPI


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = hvd.allreduce(mx.nd.full((3,), rank + 1), average=False, name="install.sum")
    if total.asnumpy().tolist() != [size * (size + 1) / 2] * 3:
        raise SystemExit(f"rank {rank} of {size}: allreduce gave {total}")
    rows = hvd.allgather(mx.nd.full((rank + 1, 2), rank), name="install.rows")
    if rows.shape != (size * (size + 1) // 2, 2):
        raise SystemExit(f"rank {rank} of {size}: allgather gave the shape {rows.shape}")
    if MPI.COMM_WORLD.Get_size() != size:
        raise SystemExit("mpi4py and Horovod do not share one MPI")
    print(f"rank {rank} of {size}: allreduce and uneven allgather are correct")
    hvd.shutdown()


if __name__ == "__main__":
    main()
