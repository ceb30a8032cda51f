"""Reads the collectives of a run from Horovod's timeline.

Horovod writes the timeline of rank 0 in Chrome's trace format if HOROVOD_TIMELINE names a file, or between
``hvd.start_timeline(file)`` and ``hvd.stop_timeline()`` if HOROVOD_TIMELINE=DYNAMIC was set before ``hvd.init()``.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

PREFIX = "horovod_"


class Collective(NamedTuple):
    """A collective of a step."""

    kind: str  # allgather, allreduce, reducescatter, broadcast or alltoall
    name: str  # as given by the program
    shape: tuple[int, ...]  # size of the result on rank 0
    nbytes: int  # type of the result
    started: float  # seconds, when all ranks were ready
    ended: float  # seconds, when it was done

    def received(self, ranks: int) -> int:
        """Returns the bytes that a rank receives from the others."""
        if self.kind == "reducescatter":  # a result from each of the other ranks, which this rank adds up
            return self.nbytes * (ranks - 1)
        return self.nbytes * (ranks - 1) // ranks


def read_timeline(path: str | Path) -> list[Collective]:
    """Returns the collectives of a timeline file in the order of their ends, without unfinished ones."""
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
            _, started = times.pop(number)
            collectives.append(Collective(kind, name, shape, nbytes, started, event["ts"] / 1e6))
    return collectives
