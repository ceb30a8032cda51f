"""What a step's time depends on besides its sizes: how fast the ranks compute and how fast they talk.

The figures of a graphics card are fitted to what was published of it (published.py, ``python benchmarks/scale.py``),
where they are not those of its data sheet. Those of a CPU differ from host to host: benchmarks/links.py measures them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GIGABIT = 1e9 / 8  # bytes


class Machine(NamedTuple):
    """One kind of host, and the network between hosts. Rates are of a rank, but for the card that a host's ranks share.

    Attributes:
        backbone_flops: flop/s in the products of the backbone in float32.
        half_flops: flop/s in those in float16.
        operator_seconds: seconds that an operator of the backbone takes in a step whatever its size: to be started,
            forward and backward, and to have its parameters updated.
        layer_flops: flop/s in the products of the layer.
        memory_bandwidth: bytes/s of the memory that it computes in.
        draw_seconds: seconds to draw a class of the sample and to bring its row together with the others.
        bus_bandwidth: bytes/s between host and GPU, and of the host's memory where a bank lies there.
        inside_bandwidth: bytes/s to another rank of the host.
        inside_latency: seconds until a message to another rank of the host is there.
        network_bandwidth: bytes/s of a host's network card, in each direction.
        network_latency: seconds until a message to another host is there.
        eager_bytes: a longer message first asks its receiver, and waits for the answer.
        cycle: seconds from one of Horovod's looks for finished work to the next.
        rings: NCCL moves the messages, in rings and beside what is computed; else Open MPI does, with the core that
            computes.
    """

    backbone_flops: float
    half_flops: float
    operator_seconds: float
    layer_flops: float
    memory_bandwidth: float
    draw_seconds: float
    bus_bandwidth: float
    inside_bandwidth: float
    inside_latency: float
    network_bandwidth: float
    network_latency: float
    eager_bytes: float = math.inf
    cycle: float = 1e-3
    rings: bool = True

    def on(self, gigabits: float, latency: float | None = None) -> Machine:
        """This machine on another network: Gbit/s of a host's card and, unless it is the same, seconds of a message.

        Raises:
            ValueError: it is not a network that moves anything.
        """
        latency = self.network_latency if latency is None else latency
        if not gigabits > 0 or latency < 0:
            raise ValueError(f"a network of {gigabits} Gbit/s and {latency} s: they must be above 0, and not below 0")
        return self._replace(network_bandwidth=gigabits * GIGABIT, network_latency=latency)

    def shared(self, ranks: float) -> Machine:
        """Of a rank, where so many take turns on its core."""
        return self._replace(
            backbone_flops=self.backbone_flops / ranks,
            half_flops=self.half_flops / ranks,
            operator_seconds=self.operator_seconds * ranks,
            layer_flops=self.layer_flops / ranks,
            memory_bandwidth=self.memory_bandwidth / ranks,
            draw_seconds=self.draw_seconds * ranks,
            inside_bandwidth=self.inside_bandwidth / ranks,
        )


# Two kinds of trainers on one kind of card differ: what is fitted, and to what, is told by published.py. The rest is of
# data sheets (memory), or assumed: 12 GB/s of PCIe 3.0 x16, 100 GB/s of NVLink in a ring, 5 and 30 microseconds. The
# layer's rate includes what its trainer does besides the products; none of them is this project's, which has not been
# measured on such cards.
V100_PYTORCH = Machine(
    backbone_flops=15.7e12,
    half_flops=41.3e12,
    operator_seconds=217e-6,
    layer_flops=4.53e12,
    memory_bandwidth=900e9,
    draw_seconds=95e-9,
    bus_bandwidth=12e9,
    inside_bandwidth=100e9,
    inside_latency=5e-6,
    network_bandwidth=100 * GIGABIT,
    network_latency=30e-6,
)
V100 = V100_PYTORCH._replace(backbone_flops=17.8e12, half_flops=43.7e12, operator_seconds=99.8e-6)
# Its ranks talk over PCIe.
RTX_2080_TI = V100._replace(half_flops=14.3e12, layer_flops=7.13e12, memory_bandwidth=616e9, inside_bandwidth=10e9)
CARDS = {"V100": V100, "V100, PyTorch": V100_PYTORCH, "2080 Ti": RTX_2080_TI}
FITTED = {
    "V100, PyTorch": ("half_flops", "operator_seconds", "layer_flops", "draw_seconds"),
    "V100": ("backbone_flops", "half_flops", "operator_seconds"),
    "2080 Ti": ("half_flops", "layer_flops"),
}
