"""Progress bars."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress(total: int | None, unit: str, text: str) -> Any:
    """A progress bar on stderr, or nothing where stderr is no terminal."""
    return tqdm(total=total, unit=unit, desc=text, disable=None, unit_scale=True, dynamic_ncols=True)
