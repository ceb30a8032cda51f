"""Reads untrusted JSON. Standard library only."""

import errno
import json
from itertools import pairwise
from typing import Any

from .regular_files import read_regular
from .text import quoted


def read_object(path: str, largest: int) -> dict[str, Any]:
    """Reads a JSON object, see read_json; raises ValueError if the file contains another value."""
    read = read_json(path, largest)
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")
    return read


def read_json(path: str, largest: int) -> Any:
    """Reads a JSON value from a regular file of at most ``largest`` bytes.

    Raises:
        OSError: the file cannot be read or is not a regular file.
        ValueError: the file is too large, contains something else, or has a name twice in an object. The message does
            not name the file.
    """
    try:
        return json.loads(read_regular(path, largest).decode(), object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"it has {error.strerror}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):  # json.loads would take the last one
        names = sorted(name for name, _ in pairs)
        raise ValueError(f"it has {quoted(next(a for a, b in pairwise(names) if a == b))} twice: remove one")
    return read
