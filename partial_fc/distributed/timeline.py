"""What Horovod's timeline tells of the collectives of a run.

Horovod writes the timeline of rank 0 in Chrome's trace format where HOROVOD_TIMELINE names a file, or between
``hvd.start_timeline(file)`` and ``hvd.stop_timeline()`` where HOROVOD_TIMELINE=DYNAMIC was set before ``hvd.init()``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

PREFIX = "horovod_"


class Collective(NamedTuple):
    """One collective of one step.

    Attributes:
        kind: allgather, allreduce, reducescatter, broadcast or alltoall.
        name: as the program gave it.
        shape: of its result on rank 0.
        nbytes: of that result.
        announced: seconds, when the first rank told that it was ready.
        started: seconds, when all ranks had told so.
        ended: seconds.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    nbytes: int
    announced: float
    started: float
    ended: float

    def received(self, ranks: int) -> int:
        """Bytes that a rank receives of the others."""
        if self.kind == "reducescatter":  # a result of each of the others, to be summed
            return self.nbytes * (ranks - 1)
        return self.nbytes * (ranks - 1) // ranks


def read_timeline(path: str | Path) -> list[Collective]:
    """The collectives of a timeline file in the order they ended; what had not ended when it was closed is left out."""
    text = Path(path).read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    names: dict[int, str] = {}
    times: dict[int, list[float]] = {}
    collectives = []
    for event in events:
        number, label = event.get("pid", 0), event.get("name", "")
        if event["ph"] == "M" and "name" in event["args"]:
            names[number] = event["args"]["name"]
        elif event["ph"] == "B" and label.startswith("NEGOTIATE_"):
            times[number] = [event["ts"] / 1e6]
        elif event["ph"] == "B" and len(times.get(number, ())) == 1:
            times[number].append(event["ts"] / 1e6)
        elif event["ph"] == "E" and "args" in event and number in times:
            kind, _, name = names[number][len(PREFIX) :].partition(".")
            shape = tuple(json.loads(event["args"]["shape"]))
            nbytes = math.prod(shape) * np.dtype(event["args"]["dtype"]).itemsize
            announced, started = times.pop(number)
            collectives.append(Collective(kind, name, shape, nbytes, announced, started, event["ts"] / 1e6))
    return collectives
