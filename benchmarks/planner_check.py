"""Compares the planner with a measured run on CPUs.

. setup-utils/env.sh
mpirun -q -np 2 python benchmarks/planner_check.py      # a minute; the bank of the largest case takes 2 GB of each rank
mpirun -q -np 2 python benchmarks/planner_check.py '{"classes": 40000, "ratio": 0.5}'         # your own cases
.venv-torch/bin/torchrun --nproc_per_node=2 benchmarks/planner_check.py                       # the PyTorch trainer

Memory is the peak resident memory of the process (proc(5)) over a few steps, minus the memory before the module exists.
Freed arrays of 128 KiB and more are returned to the system at once; by default glibc would keep 3 to 14 MB of them in
these cases, which the planner does not count. Bytes between ranks are counted by the kernel on this rank's TCP
connections (tcp(7), TCP_INFO), because ranks communicate over TCP here, and by Horovod's timeline for each collective.
The minimum time of a step is computed from the fastest large product and the fastest copy of this process, and a link
of unlimited speed. The fastest step must not be faster.
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet"), str(ROOT / "pytorch"), str(ROOT / "tools")]

from partial_fc.distributed.env import share_cores  # noqa: E402

share_cores(os.environ)

import numpy as np  # noqa: E402

from benchmarks.host import resident, start_peak  # noqa: E402
from partial_fc.distributed.collectives import Collectives  # noqa: E402
from partial_fc_tools.planner import Case, Plan, plan  # noqa: E402
from partial_fc_tools.planner.roofline import FLOPS, Rates, least_times  # noqa: E402

CASES = (
    {"classes": 100_000},
    {"classes": 100_000, "ratio": 0.1},
    {"classes": 1_000_000, "ratio": 0.1},
    {"classes": 100_000, "logits_cache_mb": 0},
    {"classes": 10_000, "network": "r18", "batch": 8},
)
INPUTS, STEPS = 16, 3  # size of an "image" for the small FullyConnected that replaces a network
PRODUCT, COPY, REPEATS = 1024, 64 << 20, 30  # rows of a square product, bytes of a copy, repetitions
_M_MMAP_THRESHOLD = -3  # from malloc.h
_TCP_BYTES_ACKED = 120  # offset in struct tcp_info of linux/tcp.h; tcpi_bytes_received follows


class Trainer(NamedTuple):
    """The part of a measurement that depends on the trainer."""

    name: str  # name of the trainer in the planner
    collectives: Collectives  # of this process
    build_bank: Callable[[Case], Any]  # allocates the centers of a case
    # returns a function that trains these centers on a batch of images and labels
    build_step: Callable[[Case, Any], Callable[[np.ndarray, np.ndarray], None]]
    # returns the bytes that a rank receives during a call, by collective
    received: Callable[[Callable[[], Any]], dict[str, int]]
    multiply: Callable[[Any, Any], None]  # computes the product of two float32 matrices


class Measured(NamedTuple):
    """Measurements of this rank, in bytes."""

    seconds: float  # seconds of the fastest step
    bank: int  # memory of class centers and momentum
    beyond: int  # memory of steps beyond the bank
    # sent, received: by TCP in a step, the median of several; 0 for other transports
    sent: float
    received: float
    collectives: dict[str, int]  # received by a rank in each collective of a step, by name; on rank 0


def image_shape(case: Case) -> tuple[int, ...]:
    return (3, 112, 112) if case.network and not case.task else (1, 4, INPUTS // 4)


def mxnet_trainer() -> Trainer:
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ["OMPI_MCA_btl"] = "tcp,self"
    import horovod.mxnet as hvd
    import mxnet as mx

    from benchmarks import case_mxnet
    from benchmarks.horovod_timeline import read_timeline
    from partial_fc_mxnet import collectives

    hvd.init()

    def build_bank(case: Case):
        bank = case_mxnet.build_bank(case)
        bank.centers.pieces[0].weight_mom.wait_to_read()
        return bank

    def build_step(case: Case, bank):
        module = case_mxnet.build_module(case, bank, image_shape(case))

        def step(images: np.ndarray, labels: np.ndarray) -> None:
            module.forward_backward(mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels, dtype="int64")]))
            module.update()
            mx.nd.waitall()

        return step

    def received(call: Callable[[], Any]) -> dict[str, int]:
        """Returns the received bytes by collective, from Horovod's timeline."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timeline.json")
            hvd.start_timeline(path)
            call()
            hvd.allreduce(mx.nd.zeros((1,)), name="end").wait_to_read()
            hvd.stop_timeline()
            events = read_timeline(path) if hvd.rank() == 0 else []
        return {event.name: event.received(hvd.size()) for event in events}

    def multiply(left: np.ndarray, right: np.ndarray) -> None:
        mx.nd.dot(mx.nd.array(left), mx.nd.array(right)).wait_to_read()

    return Trainer("mxnet", collectives.default_collectives, build_bank, build_step, received, multiply)


def torch_trainer() -> Trainer:
    import torch
    import torch.distributed as dist

    from benchmarks import case_torch
    from partial_fc_torch.collectives import default_collectives

    dist.init_process_group("gloo")

    def received(call: Callable[[], Any]) -> dict[str, int]:
        return {}  # benchmarks/scaling.py reads these from PyTorch's profiler

    def multiply(left: np.ndarray, right: np.ndarray) -> None:
        torch.mm(torch.from_numpy(left), torch.from_numpy(right))

    build_step = partial(case_torch.build_step, inputs=INPUTS)
    return Trainer("torch", default_collectives, case_torch.build_bank, build_step, received, multiply)


def return_freed_memory() -> None:
    """Makes malloc return freed arrays of 128 KiB and more to the system immediately."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


def fastest(call: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest of several calls."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_rates(trainer: Trainer) -> Rates:
    """Measures the rates of this process while the other ranks do the same."""
    matrix, source = np.ones((PRODUCT, PRODUCT), np.float32), np.ones(COPY, np.uint8)
    flops = FLOPS * PRODUCT**3 / fastest(lambda: trainer.multiply(matrix, matrix))
    return Rates(flops, flops, 2 * COPY / fastest(source.copy))


def measure(trainer: Trainer, case: Case) -> Measured:
    """Measures a case. The first step of a process also loads code, so another case must run before."""
    return_freed_memory()
    job, rng = trainer.collectives, np.random.default_rng(trainer.collectives.rank)
    before = start_peak()
    bank = trainer.build_bank(case)
    with_bank = start_peak()
    step = trainer.build_step(case, bank)
    seconds, moved = [], []

    def train() -> float:
        number = case.batch * case.gradient_acc
        images = rng.standard_normal((number, *image_shape(case)), np.float32)
        labels = rng.integers(0, case.classes, number)
        start = time.perf_counter()
        step(images, labels)
        return time.perf_counter() - start

    for _ in range(STEPS):
        job.barrier("start")
        counted = tcp_bytes()
        seconds.append(train())
        moved.append(np.subtract(tcp_bytes(), counted))
    beyond = resident("VmHWM") - with_bank
    sent, received = np.median(moved, axis=0).tolist()
    named = trainer.received(train) if job.size > 1 else {}
    return Measured(min(seconds), with_bank - before, beyond, sent, received, named)


def tcp_bytes() -> tuple[int, int]:
    """Returns the bytes that this process has sent and received on its TCP connections."""
    counts = [(0, 0)]
    for descriptor in Path("/proc/self/fd").iterdir():
        if not descriptor.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            if tcp and not listens:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                acknowledged, received = struct.unpack_from("QQ", info, _TCP_BYTES_ACKED)
                # A peer that waits for a core may acknowledge the last bytes of a step after its end.
                waiting = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
                counts.append((acknowledged + waiting, received))
    sent, received = zip(*counts)
    return sum(sent), sum(received)


def expected(planned: Plan) -> tuple[int, int]:
    """Returns the planned bytes on the host of the bank and of everything else, without an idle process."""
    sizes = {part.name: part.nbytes for part in planned.parts if part.place == "host"}
    bank, idle = sizes["class centers"] + sizes["states of their optimizer"], sizes[planned.parts[-1].name]
    return bank, sum(sizes.values()) - bank - idle


def compare(name: str, predicted: float, measured: float) -> None:
    """Prints a line of the table, in kB."""
    print(f"  {name:52}{predicted / 1e3:14,.1f}{measured / 1e3:14,.1f}{measured / predicted - 1:+9.1%}", flush=True)


def report(planned: Plan, measured: Measured, rates: Rates) -> None:
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
        for name, received in measured.collectives.items():
            if f"({name})" in transfer.name:
                compare(transfer.name, transfer.out, received)
    network = sum(transfer.out for transfer in transfers)
    if not case.network:
        network += 2 * (case.ranks - 1) * 4 * case.embedding * (INPUTS + 1) // case.ranks
    if measured.sent:
        compare("sent by TCP, including the backbone's", network, measured.sent)
        compare("received", network, measured.received)
    least = sum(time.seconds for time in least_times(planned, rates))
    compare("least and fastest step, ms", 1e6 * least, 1e6 * measured.seconds)


def main() -> None:
    trainer = torch_trainer() if "TORCHELASTIC_RUN_ID" in os.environ else mxnet_trainer()
    job = trainer.collectives
    measure(trainer, Case(2000, job.size, ratio=0.5))
    rates = measure_rates(trainer)
    for changes in [json.loads(argument) for argument in sys.argv[1:]] or CASES:
        case = Case(ranks=job.size, device="cpu", trainer=trainer.name, **changes)
        measured = measure(trainer, case)
        if job.rank == 0:
            report(plan(case), measured, rates)


if __name__ == "__main__":
    main()
