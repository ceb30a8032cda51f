"""Checks that all ranks of a job run with the same settings, code and data."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .diagnosis import format_ranks


def differences(facts: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns an error message for the first fact that differs between ranks; None if all are the same.

    The message names the ranks in the minority, or the group without rank 0 if two groups are equally large.

    Args:
        facts: the facts of each rank, JSON values by name.
    """
    for name in sorted(set().union(*facts)):
        values = [json.dumps(fact.get(name), sort_keys=True) for fact in facts]
        if len(set(values)) == 1:
            continue
        counts = Counter(values)
        common = max(counts, key=lambda value: (counts[value], value == values[0]))
        first, *others = [rank for rank, value in enumerate(values) if value != common]
        also = f" (also different: {format_ranks(others)})" if others else ""
        return (
            f"{name} differs between ranks: {values[first]} on rank {first}, "
            f"but {common} on {'rank 0' if first else 'the others'}{also}"
        )
    return None


def code_digest(roots: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of the names and contents of all .py files in ``roots``."""
    digest = hashlib.sha256()
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(name for name in files if name.endswith(".py")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    content = file.read()
                digest.update(f"{os.path.relpath(path, root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of the names, shapes and contents of ``arrays``."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape}\n".encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:16]
