"""Constants of a machine that the time of a step depends on: rates of computing and of communication.

Those of a V100 are fitted to published step times (published.py, ``python benchmarks/scale.py``); those of an A100 or
H100 are the peak rates of its data sheet. Those of a CPU differ from host to host: benchmarks/links.py measures them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GIGABIT = 1e9 / 8  # bytes


class Machine(NamedTuple):
    """One kind of host, and the network between hosts. Rates are those of one rank, except the network card's.

    Attributes:
        backbone_flops: flop/s of the backbone's matrix products in float32.
        half_flops: flop/s of the backbone's matrix products in float16.
        operator_seconds: seconds that an operator of the backbone takes in a step whatever its size: its launches,
            forward and backward, and the update of its parameters.
        layer_flops: flop/s of the layer's matrix products.
        memory_bandwidth: bytes/s of the memory of the device that computes.
        draw_seconds: seconds to sample a class and to gather its row.
        bus_bandwidth: bytes/s between host and GPU, and of the host's memory for a bank that is stored there.
        inside_bandwidth: bytes/s to another rank of the host.
        inside_latency: seconds of latency of a message to another rank of the host.
        network_bandwidth: bytes/s of a host's network card, in each direction.
        network_latency: seconds of latency of a message to another host.
        eager_bytes: longer messages use a rendezvous with the receiver first.
        cycle: seconds of Horovod's cycle; 0 without Horovod, whose negotiation then takes no time, either.
        rings: NCCL transports messages, in rings and concurrently with computing; else Open MPI does, on the core that
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
        """Returns this machine on another network.

        Args:
            gigabits: speed of a host's network card, Gbit/s.
            latency: seconds of a message; None keeps the machine's.

        Raises:
            ValueError: a number is out of range.
        """
        latency = self.network_latency if latency is None else latency
        if not gigabits > 0 or latency < 0:
            raise ValueError(f"network of {gigabits} Gbit/s and {latency} s latency: expected above 0 and at least 0")
        return self._replace(network_bandwidth=gigabits * GIGABIT, network_latency=latency)

    def shared(self, ranks: float) -> Machine:
        """Returns the machine as one rank sees it where `ranks` ranks share a core."""
        return self._replace(
            backbone_flops=self.backbone_flops / ranks,
            half_flops=self.half_flops / ranks,
            operator_seconds=self.operator_seconds * ranks,
            layer_flops=self.layer_flops / ranks,
            memory_bandwidth=self.memory_bandwidth / ranks,
            draw_seconds=self.draw_seconds * ranks,
            inside_bandwidth=self.inside_bandwidth / ranks,
        )


# Two trainers on the same card differ: published.py lists what is fitted, and to what. The rest is from data sheets
# (memory), or assumed: 12 GB/s of PCIe 3.0 x16, 100 GB/s of NVLink in a ring, latencies of 5 and 30 microseconds. The
# layer's rate includes what its trainer does besides the products; none of the trainers is this project's, which has
# not been measured on such cards.
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
# Its ranks communicate over PCIe.
RTX_2080_TI = V100._replace(half_flops=14.3e12, layer_flops=7.13e12, memory_bandwidth=616e9, inside_bandwidth=10e9)

# Peak rates in the data sheets of the SXM cards with 80 GB, dense, and nothing else: no time for operators and delays,
# no lower rates of small products. Steps on such cards take longer. NVLink and PCIe count in one direction.
A100 = Machine(
    backbone_flops=19.5e12,
    half_flops=312e12,
    operator_seconds=0.0,
    layer_flops=19.5e12,
    memory_bandwidth=2039e9,
    draw_seconds=0.0,
    bus_bandwidth=32e9,
    inside_bandwidth=300e9,
    inside_latency=0.0,
    network_bandwidth=100 * GIGABIT,
    network_latency=0.0,
    cycle=0.0,
)
H100 = A100._replace(
    backbone_flops=67e12,
    half_flops=989e12,
    layer_flops=67e12,
    memory_bandwidth=3350e9,
    bus_bandwidth=64e9,
    inside_bandwidth=450e9,
)
DATA_SHEETS = {"A100": A100, "H100": H100}
CARDS = {"V100": V100, "V100, PyTorch": V100_PYTORCH, "2080 Ti": RTX_2080_TI}
FITTED = {
    "V100, PyTorch": ("half_flops", "operator_seconds", "layer_flops", "draw_seconds"),
    "V100": ("backbone_flops", "half_flops", "operator_seconds"),
    "2080 Ti": ("half_flops", "layer_flops"),
}
