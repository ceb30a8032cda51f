"""Progress bars."""

import sys
from typing import Any

from tqdm import tqdm

from .text import one_line


def progress(total: int | None, unit: str, text: str) -> Any:
    """A progress bar on stderr, or nothing where stderr is no terminal."""
    # Its control characters are its own: cli.start escapes those written to sys.stderr.
    return tqdm(
        total=total,
        unit=unit,
        desc=one_line(text),
        file=sys.__stderr__,
        disable=None,
        unit_scale=True,
        dynamic_ncols=True,
    )
