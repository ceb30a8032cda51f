"""Reads untrusted JSON. Standard library only."""

import errno
import json
from itertools import pairwise
from typing import Any

from .regular_files import read_regular
from .text import quoted


def read_object(path: str, largest: int, kinds: tuple[type, ...] = (dict,)) -> Any:
    """Reads a JSON object, or a value of other types in ``kinds``, from a regular file of at most ``largest`` bytes.

    Raises:
        OSError: the file cannot be read or is not a regular file.
        ValueError: the file is too large, contains something else, or has a name twice in an object. The message does
            not name the file.
    """
    try:
        read = json.loads(read_regular(path, largest).decode(), object_pairs_hook=_with_unique_names)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"it has {error.strerror}") from None
    if not isinstance(read, kinds):
        raise ValueError("it is not a JSON object")
    return read


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = sorted(name for name, _ in pairs)
        raise ValueError(f"it has {quoted(next(a for a, b in pairwise(names) if a == b))} twice: remove one")
    return read
