"""Measurements of an I/O profile: figures of every rank in every phase, and properties of the hosts.

A step is one batch on every rank.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from partial_fc.distributed.env import cores_of_rank
from partial_fc.utils.memory import free_memory


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
    def speed(self) -> float:
        """Images per second."""
        return self.images / self.seconds

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
        return Tally(
            seconds=self.seconds - before.seconds,
            images=self.images - before.images,
            waited=self.waited - before.waited,
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            bytes=self.bytes - before.bytes,
            read_seconds=self.read_seconds - before.read_seconds,
            busy_seconds=self.busy_seconds - before.busy_seconds,
            disk_bytes=_difference(self.disk_bytes, before.disk_bytes),
            idle_seconds=_difference(self.idle_seconds, before.idle_seconds),
        )


class Place(NamedTuple):
    """Host of a rank.

    Attributes:
        host: Name of the host.
        cores: Cores of the host.
        threads: Decoding threads of the rank.
        memory_available: Bytes of free memory.
    """

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
        return self._total(lambda tally: tally.speed)

    @property
    def step_seconds(self) -> float:
        """Duration of a step."""
        return self.batch_size * len(self.tallies) / self.samples_per_second

    @property
    def wait_seconds(self) -> float:
        """Seconds per step that a rank waited for data, mean over the ranks."""
        return self._total(self._wait) / len(self.tallies)

    @property
    def wait_share(self) -> float:
        """Share of the time that a rank waited for data, mean over the ranks."""
        return self._total(lambda tally: tally.wait_share) / len(self.tallies)

    @property
    def worst_wait(self) -> tuple[int, float, float]:
        """The rank that waited longest, its seconds per step, and the share of its time."""
        rank = max(range(len(self.tallies)), key=lambda rank: self.tallies[rank].waited)
        return rank, self._wait(self.tallies[rank]), self.tallies[rank].wait_share

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second that all ranks requested from the files."""
        return self._total(lambda tally: tally.bytes / tally.seconds)

    @property
    def disk_bytes_per_second(self) -> float | None:
        """Bytes per second read from the disk for all ranks; None if the system does not count them."""
        if any(tally.disk_bytes is None for tally in self.tallies):
            return None
        return self._total(lambda tally: (tally.disk_bytes or 0) / tally.seconds)

    @property
    def read_share(self) -> float | None:
        """Share of the decoding threads' busy time spent reading files; None if they were idle."""
        busy = self._total(lambda tally: tally.busy_seconds)
        return self._total(lambda tally: tally.read_seconds) / busy if busy else None

    def _wait(self, tally: Tally) -> float:
        return tally.waited * self.batch_size / tally.images

    def _total(self, value: Callable[[Tally], float]) -> float:
        return sum(value(tally) for tally in self.tallies)


class Profile(NamedTuple):
    """All measurements: the three phases, a Place for each rank, and whether the network runs on a ``gpu``."""

    reader: Phase
    dummies: Phase
    training: Phase
    places: tuple[Place, ...]
    gpu: bool

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        """The three phases in order."""
        return self.reader, self.dummies, self.training

    @property
    def threads(self) -> int:
        """Decoding threads of the rank with the fewest."""
        return min(place.threads for place in self.places)

    @property
    def ranks_of_host(self) -> int:
        """Number of ranks on the host with the most."""
        return max(len(self._ranks_beside(place)) for place in self.places)

    @property
    def bottleneck(self) -> int:
        """The rank whose decoding threads are busiest in training on the data set: all other ranks wait for it."""
        return max(range(len(self.places)), key=lambda rank: self.busy_share(self.training, rank))

    @property
    def memory_available(self) -> int:
        """Free bytes of the host with the least."""
        return min(place.memory_available for place in self.places)

    def thread_shares(self, phase: Phase) -> tuple[float, float, float]:
        """Returns the shares of the decoding threads' time on all ranks: decoding, reading files, idle."""
        total = sum(tally.seconds * place.threads for tally, place in zip(phase.tallies, self.places))
        busy = sum(tally.busy_seconds for tally in phase.tallies) / total
        reading = sum(tally.read_seconds for tally in phase.tallies) / total
        return busy - reading, reading, max(0.0, 1 - busy)

    def busy_share(self, phase: Phase, rank: int) -> float:
        """Returns the share of the time that the decoding threads of a rank decode or read."""
        tally = phase.tallies[rank]
        return tally.busy_seconds / (tally.seconds * self.places[rank].threads)

    def decoding_cores(self, phase: Phase, rank: int) -> float:
        """Returns the cores that decoding uses at most on the host of a rank: reading threads wait without a core."""
        tallies = [phase.tallies[other] for other in self._ranks_beside(self.places[rank])]
        return sum((tally.busy_seconds - tally.read_seconds) / tally.seconds for tally in tallies)

    def cores_busy(self, phase: Phase, rank: int | None = None) -> tuple[float, int]:
        """Returns (busy cores, cores) of the host of a rank, or of the host with the fewest idle cores."""
        places = self.places if rank is None else (self.places[rank],)
        idle, cores = min((self._idle(place, phase), place.cores) for place in places)
        return cores - idle, cores

    def idle_cores_of_rank(self, phase: Phase, rank: int) -> float:
        """Returns the idle cores on the host of a rank divided by the ranks on this host."""
        place = self.places[rank]
        return self._idle(place, phase) / len(self._ranks_beside(place))

    def taken_by_others(self, phase: Phase) -> float:
        """Returns the share of a host's cores used by other programs, on the host where it is largest."""
        return max(
            (self._left_by_ranks(place, phase) - self._idle(place, phase)) / place.cores for place in self.places
        )

    def _idle(self, place: Place, phase: Phase) -> float:
        # The minimum of two estimates: the system counts the cores of the host, of which a container may have fewer,
        # and the CPU time of the ranks does not include other programs.
        tallies = [phase.tallies[rank] for rank in self._ranks_beside(place)]
        by_host = [tally.idle_seconds / tally.seconds for tally in tallies if tally.idle_seconds is not None]
        return min([self._left_by_ranks(place, phase), *by_host])

    def _left_by_ranks(self, place: Place, phase: Phase) -> float:
        tallies = [phase.tallies[rank] for rank in self._ranks_beside(place)]
        return max(0.0, place.cores - sum(tally.cpu_seconds / tally.seconds for tally in tallies))

    def _ranks_beside(self, place: Place) -> list[int]:
        return [rank for rank, other in enumerate(self.places) if other.host == place.host]


def place_of(threads: int) -> Place:
    """Returns the Place of this process, which has ``threads`` decoding threads."""
    return Place(socket.gethostname(), cores_of_rank(1), threads, free_memory())


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Returns the bytes read from the disk for this process so far; None if the system does not count them."""
    return _number_in(path, "read_bytes:")


def idle_seconds(path: str = "/proc/stat") -> float | None:
    """Returns the idle time of this host's cores so far, summed; None if the system does not count it."""
    idle, waiting = _number_in(path, "cpu ", 4), _number_in(path, "cpu ", 5)
    # In some sandboxes all numbers of the file are zero.
    return (idle + (waiting or 0)) / os.sysconf("SC_CLK_TCK") if idle else None


def _difference(after, before):
    return None if after is None or before is None else after - before


def _number_in(path: str, name: str, column: int = 1) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(line.split()[column]) for line in file if line.startswith(name)), None)
    except OSError:
        return None
