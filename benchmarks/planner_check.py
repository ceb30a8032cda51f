"""The planner's figures beside those of a run on CPUs.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/planner_check.py      # a minute; the bank of the largest case takes 2 GB of each rank
mpirun -q -np 2 python benchmarks/planner_check.py '{"classes": 40000, "ratio": 0.5}'         # cases of your own

Memory is what the process has resident (proc(5)), the most of a few steps, less what it had before the module was
built. Freed arrays of 128 KiB and more go back to the system at once; left alone, glibc keeps 3 to 14 MB of them in
these cases, which the planner does not count. Bytes between ranks are what the kernel counted on this rank's own TCP
connections (tcp(7), TCP_INFO), for which the ranks talk over TCP here; next to them, what Horovod's timeline tells of
each collective.
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

from partial_fc.distributed import env as launch  # noqa: E402

launch.share_cores(os.environ)

import horovod.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.layer import resident, start_peak  # noqa: E402
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
INPUTS, STEPS = 16, 5  # numbers of an "image" where there is no network but one small FullyConnected
_M_MMAP_THRESHOLD = -3  # of malloc.h
_TCP_BYTES_ACKED = 120  # offset in struct tcp_info of linux/tcp.h, before tcpi_bytes_received


class Measured(NamedTuple):
    """Of this rank; bytes.

    Attributes:
        bank: that class centers and momentum take.
        beyond: that steps take beyond the bank.
        sent, received: by TCP in a step, the median of some; 0 where ranks talk otherwise.
        collectives: of one step, on rank 0.
    """

    bank: int
    beyond: int
    sent: float
    received: float
    collectives: list[Collective]


def give_back_at_once() -> None:
    """Has malloc return every freed array of 128 KiB and more to the system, for the rest of the process."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


def build_bank(case: Case) -> MemoryBank:
    """This rank's bank."""
    shard = shard_of(case.classes, hvd.rank(), hvd.size())
    sampled = num_sampled(shard.size, case.ratio)
    return MemoryBank(
        sampled, shard.size, hvd.rank(), hvd.local_rank(), case.embedding, "", gpu=False, class_start=shard.start
    )


def build_module(case: Case, bank: MemoryBank) -> SampleDistributeModule:
    """The layer over the network, or over one small FullyConnected."""
    backbone, memory = get_scheduler([], 0.1, 0.1)
    if case.network:
        symbol = get_symbol(case.network, case.embedding)
    else:
        symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=case.embedding, name="fc1")
    optimizer = MemoryBankSGDOptimizer(memory, 1.0 / (case.batch * hvd.size()))
    loss = MarginLoss((1.0, 0.0, 0.4), 64, case.embedding)
    walk = {"tile_classes": case.tile_classes, "logits_cache_mb": case.logits_cache_mb}
    module = SampleDistributeModule(symbol, loss, bank, optimizer, **walk)
    module.bind([mx.io.DataDesc("data", (case.batch, *image_shape(case)))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "lr_scheduler": backbone, "momentum": 0.9})
    return module


def image_shape(case: Case) -> tuple[int, ...]:
    return (3, 112, 112) if case.network else (INPUTS,)


def step(module: SampleDistributeModule, case: Case, rng: np.random.Generator) -> None:
    """One step with random images and labels."""
    images = rng.standard_normal((case.batch, *image_shape(case)), np.float32)
    labels = rng.integers(0, case.classes, case.batch)
    batch = mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels, dtype="int64")])
    module.forward_backward(batch)
    module.update()
    mx.nd.waitall()


def measure(case: Case) -> Measured:
    """Runs a case. The first step of a process also loads code, so take another case before this."""
    give_back_at_once()
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
    """What Horovod's timeline tells of a call; it needs HOROVOD_TIMELINE=DYNAMIC from the start."""
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
    """Bytes this process has sent and received on its TCP connections."""
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
    """(bank, beyond it), bytes of the host without those of a process that does nothing."""
    sizes = {part.name: part.nbytes for part in planned.parts if part.place == "host"}
    bank = sizes["class centers"] + sizes["their momentum"]
    return bank, sum(sizes.values()) - bank - PROCESS


def compare(name: str, predicted: float, measured: float) -> None:
    """A line of the table, in kB."""
    print(f"  {name:52}{predicted / 1e3:14,.1f}{measured / 1e3:14,.1f}{measured / predicted - 1:+9.1%}", flush=True)


def report(planned: Plan, measured: Measured) -> None:
    """The planned figures beside the measured ones, as a table."""
    case = planned.case
    cache = f"logits_cache_mb = {case.logits_cache_mb}"
    title = f"{case.classes:,} classes, r = {case.ratio}, {cache}, {case.network or 'no network'}; kB"
    print(f"{title:54}{'planned':>14}{'measured':>14}")
    bank, beyond = expected(planned)
    compare("class centers and momentum", bank, measured.bank)
    compare("beyond them", beyond, measured.beyond)
    for move in planned.traffic:
        for one in measured.collectives:
            if move.way == "network" and f"({one.name})" in move.name:
                compare(move.name, move.out, one.received(hvd.size()))
    network = sum(move.out for move in planned.traffic if move.way == "network")
    if not case.network:
        network += 2 * (case.ranks - 1) * 4 * case.embedding * (INPUTS + 1) // case.ranks
    if measured.sent:
        compare("sent by TCP, with the backbone's", network, measured.sent)
        compare("received", network, measured.received)


def main() -> None:
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ["OMPI_MCA_btl"] = "tcp,self"
    hvd.init()
    measure(Case(2000, hvd.size(), ratio=0.5))
    for changes in [json.loads(word) for word in sys.argv[1:]] or CASES:
        case = Case(ranks=hvd.size(), device="cpu", **changes)
        measured = measure(case)
        if hvd.rank() == 0:
            report(plan(case), measured)


if __name__ == "__main__":
    main()
