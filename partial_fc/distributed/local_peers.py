"""The other ranks on a host, watched by their processes."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from .rank_record import Record, is_gone
from .rank_status import RankStatusStore


class LocalPeers:
    """The other ranks on this host and in its namespace of processes, as far as they have written their status."""

    def __init__(self, rank_status: RankStatusStore, local_size: int):
        self._rank_status, self._local_size = rank_status, local_size
        self._peers: dict[int, Record] = {}
        self._ended: set[int] = set()  # ranks that ended as they should

    def find_lost(self) -> Record | None:
        """Returns a rank whose process is gone although it did not leave, or left after an error; else None."""
        if len(self._peers) < self._local_size - 1:
            self._peers.update(self._read())
        for rank, record in self._peers.items():
            if rank not in self._ended and is_gone(record):
                last = self._read().get(rank, record)
                if not last.ended or self._rank_status.error_reported():
                    return last
                self._ended.add(rank)
        return None

    def kill(self, ranks: Sequence[int]) -> None:
        """Sends SIGKILL to those of the ranks that are on this host."""
        for rank in ranks:
            if rank in self._peers and not is_gone(self._peers[rank]):
                with suppress(ProcessLookupError):  # another rank was faster
                    os.kill(self._peers[rank].pid, signal.SIGKILL)

    def _read(self) -> dict[int, Record]:
        store = self._rank_status
        return {each.rank: each for each in store.records() if each.rank != store.rank and store.is_here(each)}
