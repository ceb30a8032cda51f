"""Numbers and names as text for people. Standard library only: the checks before a job starts use it too."""

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


# C0 but tab and newline, DEL, C1, what reverses the direction of a line, and bytes that are no UTF-8: a name in a
# downloaded list could clear the terminal, or rewrite the line above.
_CONTROL = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
    if chr(code) not in "\t\n"
}


def quoted(value: object) -> str:
    """The value as Python writes it, or its first 200 characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 200 else f"{text[:200]}..."


def printable(text: str) -> str:
    """The text with its control characters as Python escapes them, such as backslash, x, 1, b."""
    return text.translate(_CONTROL)
