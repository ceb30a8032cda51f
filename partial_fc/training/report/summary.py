"""The figures of a training for programs: `summary.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from partial_fc.checkpoint import replace_file


def write_summary(path: str, summary: Mapping[str, Any]) -> None:
    """Writes ``summary.json``, whole or not at all.

    Raises:
        OSError: it could not be written.
    """
    replace_file(path, [(json.dumps(summary, indent=2) + "\n").encode()])
