"""Measurements of an I/O profile: counters of every rank in every phase, and properties of the hosts."""

from __future__ import annotations

from typing import NamedTuple


class Tally(NamedTuple):
    """Counters of one rank at a point in time, or their increase between two such points."""

    seconds: float  # wall-clock time
    images: int  # that the rank has taken from the reader
    waited: float  # seconds that the rank waited for images
    cpu_seconds: float  # CPU time of the process and its reader processes
    bytes: int  # requested from files by the decoding threads
    read_seconds: float  # spent reading files, summed over the decoding threads
    busy_seconds: float  # spent reading or decoding, summed over the decoding threads
    disk_bytes: int | None  # read from the disk by these processes; None if the system does not count them
    idle_seconds: float | None  # idle time, summed over the host's cores; None if the system does not count it

    @property
    def read_share(self) -> float:
        """Share of the decoding threads' busy time spent reading files; 0 if they were idle."""
        return self.read_seconds / self.busy_seconds if self.busy_seconds else 0.0

    def since(self, before: Tally) -> Tally:
        """Returns the increase since ``before``."""
        pairs = zip(self, before)
        return Tally._make(None if now is None or then is None else now - then for now, then in pairs)


class RankHost(NamedTuple):
    """The host of a rank."""

    host: str  # name
    cores: int
    threads: int  # decoding threads of the rank
    memory_available: int  # bytes


class Phase(NamedTuple):
    """A phase of the profile. In each step, every rank takes a batch of ``batch_size``."""

    name: str
    batch_size: int
    tallies: tuple[Tally, ...]  # per rank

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
        """Share of the time spent waiting for data, averaged over the ranks."""
        return sum(tally.waited / tally.seconds for tally in self.tallies) / len(self.tallies)


class Profile(NamedTuple):
    """All measurements."""

    reader: Phase
    dummies: Phase
    training: Phase
    rank_hosts: tuple[RankHost, ...]  # per rank
    gpu: bool  # whether the network runs on a GPU
    readers_setting: str = "decode_threads"  # name of the setting for the number of readers
    python: bool = False  # whether Python code, such as a Dataset, reads the items: its threads wait for each other

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The three phases in order."""
        return self[:3]

    @property
    def bottleneck(self) -> int:
        """The rank with the busiest decoding threads in training on the data set; all other ranks wait for it."""
        return max(range(len(self.rank_hosts)), key=lambda rank: self.busy_share(self.training, rank))

    def busy_share(self, phase: Phase, rank: int) -> float:
        """Returns the share of the time that the decoding threads of a rank read or decode."""
        tally = phase.tallies[rank]
        return tally.busy_seconds / (tally.seconds * self.rank_hosts[rank].threads)

    def on_host_of(self, phase: Phase, rank: int) -> list[Tally]:
        """Returns the tallies of all ranks on the host of a rank."""
        host = self.rank_hosts[rank].host
        return [tally for tally, other in zip(phase.tallies, self.rank_hosts) if other.host == host]

    def idle_cores(self, phase: Phase, rank: int) -> float:
        """Returns the cores on the host of a rank that no program uses."""
        # The system counts the cores of the host, but a container may have fewer.
        idle = [t.idle_seconds / t.seconds for t in self.on_host_of(phase, rank) if t.idle_seconds is not None]
        return min([self._left_by_ranks(phase, rank), *idle])

    def taken_by_others(self, phase: Phase) -> float:
        """Returns the share of a host's cores used by other programs, on the host with the largest share."""
        return max(
            (self._left_by_ranks(phase, rank) - self.idle_cores(phase, rank)) / self.rank_hosts[rank].cores
            for rank in range(len(self.rank_hosts))
        )

    def _left_by_ranks(self, phase: Phase, rank: int) -> float:
        """Returns the cores on the host of a rank that the ranks do not use."""
        used = sum(tally.cpu_seconds / tally.seconds for tally in self.on_host_of(phase, rank))
        return max(0.0, self.rank_hosts[rank].cores - used)
