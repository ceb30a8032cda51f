"""JSON lines: ``metrics.jsonl`` in the folder of the training, for programs of one's own."""

import json
import os
from collections.abc import Mapping
from typing import TextIO

from .tracker import TrackedRun


class JsonLines:
    """Writes a line {"num_update": n, name: value, ...} for each call of `log`.

    A training that resumes repeats the updates after its checkpoint: the last line of an update counts.
    """

    def __init__(self) -> None:
        self._file: TextIO | None = None

    def begin(self, run: TrackedRun) -> None:
        """Opens the file; new lines follow those of the same training."""
        self._file = open(os.path.join(run.folder, "metrics.jsonl"), "a", encoding="utf-8", buffering=1)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Writes a line."""
        assert self._file is not None
        self._file.write(json.dumps({"num_update": num_update, **values}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        assert self._file is not None
        self._file.close()
