"""JSON lines: ``metrics.jsonl`` in the folder of the training, for programs of one's own."""

import json
import os
import re
from collections.abc import Mapping
from typing import TextIO

from partial_fc.utils.atomic_io import no_follow

from .tracker import TrackedRun

UPDATE = re.compile(rb'\{"num_update": (\d+)')


class JsonLines:
    """Writes a line {"num_update": n, name: value, ...} for each call of `log`.

    A training that resumes removes the lines of the updates that it repeats.
    """

    def __init__(self) -> None:
        self._file: TextIO | None = None

    def begin(self, run: TrackedRun) -> None:
        """Opens the file; new lines follow those of the same training."""
        path = os.path.join(run.folder, "metrics.jsonl")
        self._file = open(path, "a", encoding="utf-8", buffering=1, opener=no_follow)
        with open(path, "rb+", opener=no_follow) as file:
            end = 0
            for line in file:
                update = UPDATE.match(line)
                if not line.endswith(b"\n") or (update and int(update[1]) >= run.first_update):
                    break
                end += len(line)
            file.truncate(end)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes a line."""
        assert self._file is not None
        self._file.write(json.dumps({"num_update": num_update, **values}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        assert self._file is not None
        self._file.close()
