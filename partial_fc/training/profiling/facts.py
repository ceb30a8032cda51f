"""Measurements of an I/O profile: figures of every rank in every phase, and properties of the hosts.

A step is one batch on every rank.
"""

from __future__ import annotations

from typing import NamedTuple


class Tally(NamedTuple):
    """Counters of one rank at a point in time, or their increase between two (see `since`)."""

    seconds: float  # wall-clock time
    images: int  # images taken by the rank
    waited: float  # seconds that the rank waited for images
    cpu_seconds: float  # CPU time of the process, and of those that read for it
    bytes: int  # bytes that the decoding threads requested from the files
    read_seconds: float  # time that the decoding threads spent reading files, summed over the threads
    busy_seconds: float  # time that the decoding threads spent reading or decoding, summed over the threads
    disk_bytes: int | None  # bytes that these processes read from the disk; None if the system does not count them
    # idle time of the host's cores, summed over the cores; None if the system does not count it
    idle_seconds: float | None

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
        return sum(tally.waited / tally.seconds for tally in self.tallies) / len(self.tallies)


class Profile(NamedTuple):
    """All measurements: the three phases, a RankHost for each rank, and whether the network runs on a ``gpu``.

    ``python``: items are read by Python code, such as a Dataset's, in threads that share the interpreter's lock.
    """

    reader: Phase
    dummies: Phase
    training: Phase
    rank_hosts: tuple[RankHost, ...]
    gpu: bool
    readers: str = "decode_threads"  # the setting that says how many read; or decode_processes
    python: bool = False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The three phases in order."""
        return self[:3]

    @property
    def bottleneck(self) -> int:
        """The rank whose decoding threads are busiest in training on the data set: all other ranks wait for it."""
        return max(range(len(self.rank_hosts)), key=lambda rank: self.busy_share(self.training, rank))

    def busy_share(self, phase: Phase, rank: int) -> float:
        """Returns the share of the time that the decoding threads of a rank decode or read."""
        tally = phase.tallies[rank]
        return tally.busy_seconds / (tally.seconds * self.rank_hosts[rank].threads)

    def idle_cores(self, phase: Phase, rank: int) -> float:
        """Returns the idle cores on the host of a rank, without those that other programs use."""
        return self._cores_left(phase, rank)[1]

    def taken_by_others(self, phase: Phase) -> float:
        """Returns the share of a host's cores used by other programs, on the host where it is largest."""
        left = [self._cores_left(phase, rank) for rank in range(len(self.rank_hosts))]
        return max((by_ranks - idle) / host.cores for (by_ranks, idle), host in zip(left, self.rank_hosts))

    def on_host_of(self, phase: Phase, rank: int) -> list[Tally]:
        """Returns the tallies of the ranks on the host of a rank, including it."""
        host = self.rank_hosts[rank].host
        return [tally for tally, other in zip(phase.tallies, self.rank_hosts) if other.host == host]

    def _cores_left(self, phase: Phase, rank: int) -> tuple[float, float]:
        """Returns the cores that the ranks leave idle on the host of a rank, and those that all programs do."""
        tallies = self.on_host_of(phase, rank)
        left = max(0.0, self.rank_hosts[rank].cores - sum(tally.cpu_seconds / tally.seconds for tally in tallies))
        # The system counts the cores of the host, of which a container may have fewer.
        by_host = [tally.idle_seconds / tally.seconds for tally in tallies if tally.idle_seconds is not None]
        return left, min([left, *by_host])
