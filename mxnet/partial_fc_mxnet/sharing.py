"""Whether all hosts of a job see the same folder."""

from __future__ import annotations

import os
import secrets
import socket

import horovod.mxnet as hvd

from . import collectives


def hosts_without_shared_folder(folder: str) -> list[str]:
    """Names of the hosts that do not see what rank 0 writes into a folder (all-gathers ``mark``, ``mark_seen``).

    Raises:
        JobError: on every rank, where rank 0 cannot write there.
    """
    if hvd.size() == hvd.local_size():
        return []
    # A name that no host has looked for before: file servers' clients remember for a while what was not there.
    mark = collectives.gather("mark", os.path.join(folder, f".mark-{secrets.token_hex(8)}"))[0]
    collectives.run_on_all_ranks("mark_made", lambda: hvd.rank() == 0 and _make(mark))
    hosts = collectives.gather("mark_seen", "" if os.path.exists(mark) else socket.gethostname())
    if hvd.rank() == 0:
        os.remove(mark)
    return sorted(set(hosts) - {""})


def _make(path: str) -> None:
    with open(path, "x"):
        pass
