"""Numbers and names as text for people. Standard library only: the checks before a job starts use it too."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, singular: str, plural: str = "") -> str:
    """A count with its noun: "1 image", "2 images", "1,000,000 images"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def amount(size: float) -> str:
    """A number of bytes with a decimal unit: "5 bytes", "1.5 KB", "128.0 GB"."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def some(names: Sequence[str]) -> str:
    """The first three names, and how many others there are: "a, b, c and 2 others"."""
    return ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")
