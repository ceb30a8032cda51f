"""Checks that all hosts of a job see the same folder."""

import os
import secrets
import socket
from pathlib import Path

from .collectives import Collectives


def hosts_without_shared_folder(collectives: Collectives, folder: str) -> list[str]:
    """Returns the names of the hosts that do not see a file that rank 0 creates in a folder.

    Collectives: all-gathers ``mark``, ``status.mark_made``, ``mark_seen`` if the job has several hosts.

    Raises:
        JobError: rank 0 cannot write to the folder; raised on all ranks.
    """
    if collectives.size == collectives.local_size:
        return []
    # A new name every time, because clients of file servers cache for a while that a file does not exist.
    mark = collectives.broadcast("mark", os.path.join(folder, f".mark-{secrets.token_hex(8)}"))
    collectives.on_rank_zero("mark_made", Path(mark).touch)
    hosts = collectives.gather_object("mark_seen", "" if os.path.exists(mark) else socket.gethostname())
    if collectives.rank == 0:
        os.remove(mark)
    return sorted(set(hosts) - {""})
