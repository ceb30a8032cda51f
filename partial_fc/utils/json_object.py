"""Reads untrusted JSON. Standard library only."""

import errno
import json
from typing import Any

from .regular_files import read_regular


def read_object(path: str, largest: int) -> dict[str, Any]:
    """Reads a JSON object from a regular file of at most ``largest`` bytes.

    Raises:
        OSError: the file cannot be read or is not a regular file.
        ValueError: the file is too large or contains something else. The message does not name the file.
    """
    try:
        read = json.loads(read_regular(path, largest).decode())
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"it has {error.strerror}") from None
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")
    return read
