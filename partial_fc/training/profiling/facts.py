"""Measurements of an I/O profile: figures of every rank in every phase, and properties of the hosts.

A step is one batch on every rank.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Tally(NamedTuple):
    """Counters of one rank at a point in time, or their increase between two (see `since`).

    Attributes:
        seconds: Wall-clock time.
        images: Images taken by the rank.
        waited: Seconds that the rank waited for images.
        cpu_seconds: CPU time of the process.
        bytes: Bytes that the decoding threads requested from the files.
        read_seconds: Time that the decoding threads spent reading files, summed over the threads.
        busy_seconds: Time that the decoding threads spent reading or decoding, summed over the threads.
        disk_bytes: Bytes read from the disk; None if the system does not count them.
        idle_seconds: Idle time of the host's cores, summed over the cores; None if the system does not count it.
    """

    seconds: float
    images: int
    waited: float
    cpu_seconds: float
    bytes: int
    read_seconds: float
    busy_seconds: float
    disk_bytes: int | None
    idle_seconds: float | None

    @property
    def wait_share(self) -> float:
        """Share of the time that the rank waited for data."""
        return self.waited / self.seconds

    @property
    def read_share(self) -> float:
        """Share of the decoding threads' busy time spent reading files; 0 if they were idle."""
        return self.read_seconds / self.busy_seconds if self.busy_seconds else 0.0

    def since(self, before: Tally) -> Tally:
        """Returns the increase since ``before``."""
        pairs = zip(self, before)
        return Tally._make(None if later is None or first is None else later - first for later, first in pairs)


class RankHost(NamedTuple):
    """Host of a rank: its name, its cores, the decoding threads of the rank, and bytes of free memory."""

    host: str
    cores: int
    threads: int
    memory_available: int


class Phase(NamedTuple):
    """A phase of the profile: the ``batch_size`` of a rank, and a Tally for each rank in order."""

    name: str
    batch_size: int
    tallies: tuple[Tally, ...]

    @property
    def samples_per_second(self) -> float:
        """Images per second of all ranks."""
        return sum(tally.images / tally.seconds for tally in self.tallies)

    @property
    def step_seconds(self) -> float:
        """Duration of a step."""
        return self.batch_size * len(self.tallies) / self.samples_per_second

    @property
    def wait_share(self) -> float:
        """Share of the time that a rank waited for data, mean over the ranks."""
        return sum(tally.wait_share for tally in self.tallies) / len(self.tallies)

    @property
    def disk_bytes_per_second(self) -> float | None:
        """Bytes per second read from the disk for all ranks; None if the system does not count them."""
        rates = [tally.disk_bytes / tally.seconds for tally in self.tallies if tally.disk_bytes is not None]
        return sum(rates) if len(rates) == len(self.tallies) else None


class Profile(NamedTuple):
    """All measurements: the three phases, a RankHost for each rank, and whether the network runs on a ``gpu``."""

    reader: Phase
    dummies: Phase
    training: Phase
    rank_hosts: tuple[RankHost, ...]
    gpu: bool

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        """The three phases in order."""
        return self.reader, self.dummies, self.training

    @property
    def bottleneck(self) -> int:
        """The rank whose decoding threads are busiest in training on the data set: all other ranks wait for it."""
        return max(range(len(self.rank_hosts)), key=lambda rank: self.busy_share(self.training, rank))

    def busy_share(self, phase: Phase, rank: int) -> float:
        """Returns the share of the time that the decoding threads of a rank decode or read."""
        tally = phase.tallies[rank]
        return tally.busy_seconds / (tally.seconds * self.rank_hosts[rank].threads)

    def decoding_cores(self, phase: Phase, rank: int) -> float:
        """Returns the cores that decoding uses at most on the host of a rank: reading threads wait without a core."""
        tallies = self._beside(phase, rank)
        return sum((tally.busy_seconds - tally.read_seconds) / tally.seconds for tally in tallies)

    def idle_cores(self, phase: Phase, rank: int) -> float:
        """Returns the idle cores on the host of a rank.

        The minimum of two estimates: the system counts the cores of the host, of which a container may have fewer, and
        the CPU time of the ranks does not include other programs.
        """
        tallies = self._beside(phase, rank)
        by_host = [tally.idle_seconds / tally.seconds for tally in tallies if tally.idle_seconds is not None]
        return min([self._left_by_ranks(phase, rank), *by_host])

    def taken_by_others(self, phase: Phase) -> float:
        """Returns the share of a host's cores used by other programs, on the host where it is largest."""
        return max(
            (self._left_by_ranks(phase, rank) - self.idle_cores(phase, rank)) / rank_host.cores
            for rank, rank_host in enumerate(self.rank_hosts)
        )

    def ranks_beside(self, rank: int) -> list[int]:
        """Returns the ranks on the host of a rank, including it."""
        hosts = [rank_host.host for rank_host in self.rank_hosts]
        return [other for other, host in enumerate(hosts) if host == hosts[rank]]

    def _beside(self, phase: Phase, rank: int) -> list[Tally]:
        return [phase.tallies[other] for other in self.ranks_beside(rank)]

    def _left_by_ranks(self, phase: Phase, rank: int) -> float:
        used = sum(tally.cpu_seconds / tally.seconds for tally in self._beside(phase, rank))
        return max(0.0, self.rank_hosts[rank].cores - used)


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Returns the bytes read from the disk for this process so far; None if the system does not count them."""
    return _number_in(path, "read_bytes:")


def idle_seconds(path: str = "/proc/stat") -> float | None:
    """Returns the idle time of this host's cores so far, summed; None if the system does not count it."""
    idle, waiting = _number_in(path, "cpu ", 4), _number_in(path, "cpu ", 5)
    # In some sandboxes all numbers of the file are zero.
    return (idle + (waiting or 0)) / os.sysconf("SC_CLK_TCK") if idle else None


def _number_in(path: str, name: str, column: int = 1) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(line.split()[column]) for line in file if line.startswith(name)), None)
    except OSError:
        return None
