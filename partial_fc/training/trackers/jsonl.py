"""JSON lines: ``metrics.jsonl`` in the output folder, for the user's own programs."""

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

    _file: TextIO

    def begin(self, run: TrackedRun) -> None:
        """Opens the file; lines of the same training stay."""
        path = os.path.join(run.folder, "metrics.jsonl")
        self._file = open(path, "a", encoding="utf-8", buffering=1, opener=no_follow)
        with open(path, "rb+", opener=no_follow) as file:
            end = 0
            for line in file:
                update = UPDATE.match(line)
                # A process that was killed may leave half a line.
                if not line.endswith(b"\n") or (update and int(update[1]) >= run.first_update):
                    break
                end += len(line)
            file.truncate(end)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes a line."""
        self._file.write(json.dumps({"num_update": num_update, **values}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
