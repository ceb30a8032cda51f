"""Formats numbers and untrusted names for people, and reads text files that people edit.

Standard library only, because the checks before a job use it, too.
"""

import codecs
import io
import json
import logging
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from .regular_files import open_text


def plural(count: int, singular: str, plural: str = "") -> str:
    """Returns a count with its noun: "1 image", "2 images", "1,000,000 images"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def amount(size: float) -> str:
    """Returns a number of bytes with a decimal unit: "5 bytes", "1.5 KB", "128.0 GB"."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def some(names: Sequence[str]) -> str:
    """Returns the first three names and the number of others: "a, b, c and 2 others"."""
    return ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")


def encoding_of(beginning: bytes) -> str:
    """Returns the encoding of a text file with these first two bytes: UTF-16 with a byte order mark, or UTF-8."""
    return "utf-16" if beginning[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def read_lines(path: str | os.PathLike, any_bytes: bool = False) -> Iterator[str]:
    """Yields the lines of a text file without line ends. Empty lines at the end are skipped.

    Args:
        path: a file or pipe, see open_text, in UTF-8 or in UTF-16 with a byte order mark, with LF or CRLF line ends.
        any_bytes: decode invalid UTF-8 with surrogateescape, as in file names, instead of refusing it.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not valid text; the message names the file and the line.
    """
    with open_text(path) as file:
        encoding = encoding_of(file.peek(2))
        wide, empty = encoding == "utf-16", 0
        text = io.TextIOWrapper(file, encoding, "replace" if wide else "surrogateescape", newline="\n")
        for number, line in enumerate(text, start=1):
            line = line.removesuffix("\n").removesuffix("\r")
            invalid = "\0" in line or (wide and "\ufffd" in line) or not (any_bytes or wide or _is_unicode(line))
            if invalid or "\r" in line:
                problem = "is neither UTF-8 nor UTF-16 with its mark" if invalid else "has a carriage return inside"
                raise ValueError(f"{os.fspath(path)}, line {number}: it {problem}: save the file as UTF-8 text")
            if not line.strip():
                empty += 1
                continue
            yield from [""] * empty
            empty = 0
            yield line


def _is_unicode(line: str) -> bool:
    return line.isascii() or not any("\ud800" <= character <= "\udfff" for character in line)


QUIET = "PARTIAL_FC_QUIET"  # environment variable that the option --quiet sets
# Ranges of invisible characters outside of the categories in is_hidden: Unicode's Default_Ignorable_Code_Point, and
# the empty Braille pattern.
BLANK = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2060, 0x206F), (0x2800, 0x2800)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)),
)


def is_hidden(character: str) -> bool:
    """Returns whether a character controls the terminal or is invisible. A space is not hidden; tab and newline are."""
    code = ord(character)
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") or any(
        first <= code <= last for first, last in BLANK
    )


class _Escapes(dict):
    """Translation table that escapes hidden characters, except tab and newline, and bytes that are not valid UTF-8.

    Without it, a name in a downloaded list could clear the terminal, overwrite the line above, or look like another
    name.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        hidden = is_hidden(character) and character not in "\t\n"
        self[code] = (f"\\x{code:02x}" if code < 0x80 else ascii(character)[1:-1]) if hidden else character
        return self[code]


_ESCAPES = _Escapes()


def quoted(value: object) -> str:
    """Returns repr(value), at most its first 200 characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 200 else f"{text[:200]}..."


def printable(text: str) -> str:
    """Returns the text with hidden characters escaped as in Python, such as ESC as backslash, x, 1, b."""
    return text.translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """Like printable(), and indents later lines, so that a name with a line break does not look like a new message."""
    return printable(text).replace("\n", "\n    ")


class MessageFormatter(logging.Formatter):
    """Formats log messages, which may contain untrusted names, see printable_lines()."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return printable_lines(super().format(record))


def one_line(text: str) -> str:
    """Like printable(), and escapes line breaks, too."""
    return printable(text).replace("\n", "\\n")


def say(text: object, file: TextIO | None = None) -> None:
    """Prints a message that may contain untrusted names, see printable_lines(). ``file`` is standard output by default.

    All output except tables and JSON goes through this function.
    """
    print(printable_lines(str(text)), file=file, flush=True)


def remark(text: str) -> None:
    """Prints a message on standard error that the option --quiet hides."""
    if not os.environ.get(QUIET):
        say(text, sys.stderr)


def say_json(value: Any) -> None:
    """Prints a value as JSON, in which all untrusted characters are escaped, and numbers that JSON lacks are null."""
    print(json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), indent=1))
