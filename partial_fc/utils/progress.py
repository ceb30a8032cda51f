"""Progress bars."""

import os
import sys
from typing import Any

from tqdm import tqdm

from .text import QUIET, one_line


def progress(total: int | None, unit: str, text: str) -> Any:
    """Returns a progress bar on standard error, which shows nothing with --quiet or unless that is a terminal."""
    # Not sys.stderr, where cli.start escapes control characters.
    return tqdm(
        total=total,
        unit=unit,
        desc=one_line(text),
        file=sys.__stderr__,
        disable=True if os.environ.get(QUIET) else None,
        unit_scale=True,
        dynamic_ncols=True,
    )
