"""Compares the planner with a run on CPUs.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/planner_check.py      # a minute; the bank of the largest case takes 2 GB of each rank
mpirun -q -np 2 python benchmarks/planner_check.py '{"classes": 40000, "ratio": 0.5}'         # your own cases

Memory is the peak resident memory of the process (proc(5)) over a few steps, less that before the module is built.
Freed arrays of 128 KiB and more are returned to the system at once; by default glibc keeps 3 to 14 MB of them in these
cases, which the planner does not count. Bytes between ranks are those that the kernel counts on this rank's TCP
connections (tcp(7), TCP_INFO), as ranks communicate over TCP here, and those of each collective in Horovod's timeline.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet")]

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.host import resident, start_peak  # noqa: E402
from partial_fc.distributed.timeline import Collective, read_timeline  # noqa: E402
from partial_fc.layer.sharding import num_sampled, shard_of  # noqa: E402
from partial_fc.planner import Case, Plan, plan  # noqa: E402
from partial_fc.planner.memory import PROCESS  # noqa: E402
from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer, SampleDistributeModule, get_scheduler  # noqa: E402
from partial_fc_mxnet.symbol import get_symbol  # noqa: E402

CASES = (
    {"classes": 100_000},
    {"classes": 100_000, "ratio": 0.1},
    {"classes": 1_000_000, "ratio": 0.1},
    {"classes": 100_000, "logits_cache_mb": 0},
    {"classes": 10_000, "network": "r18", "batch": 8},
)
INPUTS, STEPS = 16, 5  # size of an "image" for the small FullyConnected in place of a network
_M_MMAP_THRESHOLD = -3  # of malloc.h
_TCP_BYTES_ACKED = 120  # offset in struct tcp_info of linux/tcp.h, before tcpi_bytes_received


class Measured(NamedTuple):
    """Measurements of this rank, in bytes.

    Attributes:
        bank: memory of class centers and momentum.
        beyond: memory of steps beyond the bank.
        sent, received: by TCP in a step, the median of several; 0 for other transports.
        collectives: those of one step, on rank 0.
    """

    bank: int
    beyond: int
    sent: float
    received: float
    collectives: list[Collective]


def return_freed_memory() -> None:
    """Makes malloc return freed arrays of 128 KiB and more to the system at once."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


def build_bank(case: Case) -> MemoryBank:
    """Returns the bank of this rank."""
    shard = shard_of(case.classes, hvd.rank(), hvd.size())
    sampled = num_sampled(shard.size, case.ratio)
    return MemoryBank(
        sampled, shard.size, hvd.rank(), hvd.local_rank(), case.embedding, "", gpu=False, class_start=shard.start
    )


def build_module(case: Case, bank: MemoryBank) -> SampleDistributeModule:
    """Returns a module of the layer on the network, or on one small FullyConnected."""
    backbone, memory = get_scheduler([], 0.1, 0.1)
    if case.network:
        symbol = get_symbol(case.network, case.embedding)
    else:
        symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=case.embedding, name="fc1")
    optimizer = MemoryBankSGDOptimizer(memory, 1.0 / (case.batch * hvd.size()))
    loss = MarginLoss((1.0, 0.0, 0.4), 64, case.embedding)
    tiling = {"tile_classes": case.tile_classes, "logits_cache_mb": case.logits_cache_mb}
    module = SampleDistributeModule(symbol, loss, bank, optimizer, **tiling)
    module.bind([mx.io.DataDesc("data", (case.batch, *image_shape(case)))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "lr_scheduler": backbone, "momentum": 0.9})
    return module


def image_shape(case: Case) -> tuple[int, ...]:
    return (3, 112, 112) if case.network else (INPUTS,)


def step(module: SampleDistributeModule, case: Case, rng: np.random.Generator) -> None:
    """Trains one step with random images and labels."""
    images = rng.standard_normal((case.batch, *image_shape(case)), np.float32)
    labels = rng.integers(0, case.classes, case.batch)
    batch = mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels, dtype="int64")])
    module.forward_backward(batch)
    module.update()
    mx.nd.waitall()


def measure(case: Case) -> Measured:
    """Runs a case. The first step of a process also loads code, so run another case first."""
    return_freed_memory()
    rng = np.random.default_rng(hvd.rank())
    before = start_peak()
    bank = build_bank(case)
    bank.centers.pieces[0].weight_mom.wait_to_read()
    with_bank = start_peak()
    module = build_module(case, bank)
    moved = []
    for _ in range(STEPS):
        hvd.allreduce(mx.nd.zeros((1,)), name="start").wait_to_read()
        counted = tcp_bytes()
        step(module, case, rng)
        moved.append(np.subtract(tcp_bytes(), counted))
    beyond = resident("VmHWM") - with_bank
    sent, received = np.median(moved, axis=0).tolist()
    return Measured(with_bank - before, beyond, sent, received, collectives_of(lambda: step(module, case, rng)))


def collectives_of(call) -> list[Collective]:
    """Reads the collectives of a call from Horovod's timeline; needs HOROVOD_TIMELINE=DYNAMIC from the start."""
    if hvd.size() == 1:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "timeline.json")
        hvd.start_timeline(path)
        call()
        hvd.allreduce(mx.nd.zeros((1,)), name="end").wait_to_read()
        hvd.stop_timeline()
        return read_timeline(path) if hvd.rank() == 0 else []


def tcp_bytes() -> tuple[int, int]:
    """Returns bytes that this process has sent and received on its TCP connections."""
    counts = [(0, 0)]
    for descriptor in Path("/proc/self/fd").iterdir():
        if not descriptor.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                counts.append(struct.unpack_from("QQ", info, _TCP_BYTES_ACKED))
    sent, received = zip(*counts)
    return sum(sent), sum(received)


def expected(planned: Plan) -> tuple[int, int]:
    """Returns bytes on the host of (bank, everything else), without those of an idle process."""
    sizes = {part.name: part.nbytes for part in planned.parts if part.place == "host"}
    bank = sizes["class centers"] + sizes["their momentum"]
    return bank, sum(sizes.values()) - bank - PROCESS


def compare(name: str, predicted: float, measured: float) -> None:
    """Prints a line of the table, in kB."""
    print(f"  {name:52}{predicted / 1e3:14,.1f}{measured / 1e3:14,.1f}{measured / predicted - 1:+9.1%}", flush=True)


def report(planned: Plan, measured: Measured) -> None:
    """Prints planned and measured figures as a table."""
    case = planned.case
    cache = f"logits_cache_mb = {case.logits_cache_mb}"
    title = f"{case.classes:,} classes, r = {case.ratio}, {cache}, {case.network or 'no network'}; kB"
    print(f"{title:54}{'planned':>14}{'measured':>14}")
    bank, beyond = expected(planned)
    compare("class centers and momentum", bank, measured.bank)
    compare("beyond them", beyond, measured.beyond)
    transfers = [transfer for transfer in planned.traffic if transfer.way == "network"]
    for transfer in transfers:
        for collective in measured.collectives:
            if f"({collective.name})" in transfer.name:
                compare(transfer.name, transfer.out, collective.received(hvd.size()))
    network = sum(transfer.out for transfer in transfers)
    if not case.network:
        network += 2 * (case.ranks - 1) * 4 * case.embedding * (INPUTS + 1) // case.ranks
    if measured.sent:
        compare("sent by TCP, including the backbone's", network, measured.sent)
        compare("received", network, measured.received)


def main() -> None:
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ["OMPI_MCA_btl"] = "tcp,self"
    hvd.init()
    measure(Case(2000, hvd.size(), ratio=0.5))
    for changes in [json.loads(argument) for argument in sys.argv[1:]] or CASES:
        case = Case(ranks=hvd.size(), device="cpu", **changes)
        measured = measure(case)
        if hvd.rank() == 0:
            report(plan(case), measured)


if __name__ == "__main__":
    main()
