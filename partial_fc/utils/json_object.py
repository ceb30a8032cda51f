"""Reads JSON that others may have written. Standard library only."""

import json
from typing import Any


def read_object(path: str, largest: int) -> dict[str, Any]:
    """Reads the JSON object in a file of at most ``largest`` bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger, or holds something else; the caller names the file.
    """
    with open(path, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    try:
        read = json.loads(content.decode())
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")
    return read
