"""Reads JSON that others may have written. Standard library only."""

import errno
import json
from typing import Any

from .regular_files import read_regular


def read_object(path: str, largest: int) -> dict[str, Any]:
    """Reads the JSON object in a file of at most ``largest`` bytes.

    Raises:
        OSError: The file cannot be read, or is no regular one.
        ValueError: It is larger, or holds something else; the caller names the file.
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
