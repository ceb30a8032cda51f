"""What an IO profile measures: the figures of every rank in every phase, and what the host of a rank is and has.

A step is one batch of every rank; R is the number of ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from partial_fc.distributed import env as launch
from partial_fc.utils.memory import free_memory


class Tally(NamedTuple):
    """What one rank has done up to a moment, or between two moments (see :meth:`since`).

    ``seconds`` of the clock; ``images`` taken by the rank; seconds it ``waited`` for them; ``cpu_seconds`` of the whole
    process; ``bytes`` its decoding threads have asked of the files; their ``busy_seconds``, of which ``read_seconds``
    were spent in reading the files; ``disk_bytes`` that really came from the disk; ``idle_seconds`` of the cores of its
    host, all added up. The last two are None where the system does not tell.
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
        """Images a second."""
        return self.images / self.seconds

    @property
    def wait_share(self) -> float:
        """The share of the time that the rank waited for data."""
        return self.waited / self.seconds

    @property
    def read_share(self) -> float:
        """The share of the decoding threads' busy time spent in reading the files; 0 where they did nothing."""
        return self.read_seconds / self.busy_seconds if self.busy_seconds else 0.0

    def since(self, before: Tally) -> Tally:
        """What was done since ``before``."""
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
    """Where a rank runs: ``host``, its ``cores``, bytes of memory to be had there; the rank's decoding ``threads``."""

    host: str
    cores: int
    threads: int
    memory_available: int | None


class Phase(NamedTuple):
    """A phase on all ranks: a Tally for each, in the order of the ranks, and the ``batch_size`` of one rank."""

    name: str
    batch_size: int
    tallies: tuple[Tally, ...]

    @property
    def samples_per_second(self) -> float:
        return self._total(lambda tally: tally.speed)

    @property
    def step_seconds(self) -> float:
        return self.batch_size * len(self.tallies) / self.samples_per_second

    @property
    def wait_seconds(self) -> float:
        """Seconds a step that a rank waited for data, the mean over the ranks."""
        return self._total(self._wait) / len(self.tallies)

    @property
    def wait_share(self) -> float:
        """The share of the time that a rank waited for data, the mean over the ranks."""
        return self._total(lambda tally: tally.wait_share) / len(self.tallies)

    @property
    def worst_wait(self) -> tuple[int, float, float]:
        """The rank that waited longest, its seconds a step, and the share of its time."""
        rank = max(range(len(self.tallies)), key=lambda rank: self.tallies[rank].waited)
        return rank, self._wait(self.tallies[rank]), self.tallies[rank].wait_share

    @property
    def bytes_per_second(self) -> float:
        return self._total(lambda tally: tally.bytes / tally.seconds)

    @property
    def disk_bytes_per_second(self) -> float | None:
        if any(tally.disk_bytes is None for tally in self.tallies):
            return None
        return self._total(lambda tally: (tally.disk_bytes or 0) / tally.seconds)

    @property
    def read_share(self) -> float | None:
        """Share of the decoding threads' busy time spent in reading the files; None where they did nothing."""
        busy = self._total(lambda tally: tally.busy_seconds)
        return self._total(lambda tally: tally.read_seconds) / busy if busy else None

    def _wait(self, tally: Tally) -> float:
        return tally.waited * self.batch_size / tally.images

    def _total(self, value: Callable[[Tally], float]) -> float:
        return sum(value(tally) for tally in self.tallies)


class Profile(NamedTuple):
    """Everything measured: the three phases, a Place for each rank, and whether the network runs on a ``gpu``."""

    reader: Phase
    dummies: Phase
    training: Phase
    places: tuple[Place, ...]
    gpu: bool

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        return self.reader, self.dummies, self.training

    @property
    def threads(self) -> int:
        """Decoding threads of a rank, of the rank that has the fewest."""
        return min(place.threads for place in self.places)

    @property
    def ranks_of_host(self) -> int:
        """Ranks of the host that has the most."""
        return max(len(self._ranks_beside(place)) for place in self.places)

    @property
    def brake(self) -> int:
        """The rank whose decoding threads are busiest when training on the set: all others wait for it."""
        return max(range(len(self.places)), key=lambda rank: self.busy_share(self.training, rank))

    @property
    def memory_available(self) -> int | None:
        """Bytes of the host that has the least; None where no host tells."""
        return min(
            (place.memory_available for place in self.places if place.memory_available is not None), default=None
        )

    def thread_shares(self, phase: Phase) -> tuple[float, float, float]:
        """What the decoding threads of all ranks spend their time on, as shares: decoding, reading the files, idle."""
        whole = sum(tally.seconds * place.threads for tally, place in zip(phase.tallies, self.places))
        busy = sum(tally.busy_seconds for tally in phase.tallies) / whole
        reading = sum(tally.read_seconds for tally in phase.tallies) / whole
        return busy - reading, reading, max(0.0, 1 - busy)

    def busy_share(self, phase: Phase, rank: int) -> float:
        """Share of the time that the decoding threads of a rank are busy, with decoding or reading."""
        tally = phase.tallies[rank]
        return tally.busy_seconds / (tally.seconds * self.places[rank].threads)

    def decoding_cores(self, phase: Phase, rank: int) -> float:
        """Cores that decoding takes on the host of a rank: no more than the threads that are busy and do not wait."""
        tallies = [phase.tallies[other] for other in self._ranks_beside(self.places[rank])]
        return sum((tally.busy_seconds - tally.read_seconds) / tally.seconds for tally in tallies)

    def cores_busy(self, phase: Phase, rank: int | None = None) -> tuple[float, int]:
        """(busy cores of a host, its cores): on the host of a rank, or on the one that has the fewest idle ones."""
        places = self.places if rank is None else (self.places[rank],)
        idle, cores = min((self._idle(place, phase), place.cores) for place in places)
        return cores - idle, cores

    def idle_cores_of_rank(self, phase: Phase, rank: int) -> float:
        """Cores that a rank could still take: those idle on its host, divided by the ranks there."""
        place = self.places[rank]
        return self._idle(place, phase) / len(self._ranks_beside(place))

    def taken_by_others(self, phase: Phase) -> float:
        """Share of a host's cores that other programs than the ranks keep busy, on the host where that is most."""
        return max(
            (self._left_by_ranks(place, phase) - self._idle(place, phase)) / place.cores for place in self.places
        )

    def _idle(self, place: Place, phase: Phase) -> float:
        # Two views: a container may have fewer cores than the host that the system tells of, and other programs than
        # the ranks may be at work.
        tallies = [phase.tallies[rank] for rank in self._ranks_beside(place)]
        by_host = [tally.idle_seconds / tally.seconds for tally in tallies if tally.idle_seconds is not None]
        return min([self._left_by_ranks(place, phase), *by_host])

    def _left_by_ranks(self, place: Place, phase: Phase) -> float:
        tallies = [phase.tallies[rank] for rank in self._ranks_beside(place)]
        return max(0.0, place.cores - sum(tally.cpu_seconds / tally.seconds for tally in tallies))

    def _ranks_beside(self, place: Place) -> list[int]:
        return [rank for rank, other in enumerate(self.places) if other.host == place.host]


def place_of(threads: int) -> Place:
    """This process's Place, with so many decoding threads."""
    return Place(socket.gethostname(), launch.cores_of_rank(1), threads, free_memory())


def disk_bytes(path: str = "/proc/self/io") -> int | None:
    """Bytes that the disk has read for this process so far; None where the system does not tell (only Linux does)."""
    return _number_in(path, "read_bytes:")


def idle_seconds(path: str = "/proc/stat") -> float | None:
    """Seconds that the cores of this host have been idle so far, all added up; None where the system does not tell."""
    idle, waiting = _number_in(path, "cpu ", 4), _number_in(path, "cpu ", 5)
    # Some sandboxes have the file, with nothing but zeros.
    return (idle + (waiting or 0)) / os.sysconf("SC_CLK_TCK") if idle else None


def _difference(after, before):
    return None if after is None or before is None else after - before


def _number_in(path: str, name: str, word: int = 1) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(line.split()[word]) for line in file if line.startswith(name)), None)
    except OSError:
        return None
