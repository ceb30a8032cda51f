"""Do all ranks of a job mean the same: settings, code, data?"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def differences(facts: Sequence[Mapping[str, Any]]) -> str | None:
    """What is not the same on all ranks, as a sentence; None where everything is.

    The ranks that are fewer are named; of as many, those without rank 0.

    Args:
        facts: of each rank, name -> value as JSON has it.
    """
    for name in sorted(set().union(*facts)):
        values = [json.dumps(fact.get(name), sort_keys=True) for fact in facts]
        if len(set(values)) == 1:
            continue
        counts = Counter(values)
        common = max(counts, key=lambda value: (counts[value], value == values[0]))
        ranks = [rank for rank, value in enumerate(values) if value != common]
        return (
            f"rank {ranks[0]} has another {name} than {'rank 0' if ranks[0] else 'the others'}: "
            f"{values[ranks[0]]}, not {common}{_also(ranks[1:])}"
        )
    return None


def _also(ranks: list[int]) -> str:
    return f" (so do ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''})" if ranks else ""


def code_digest(roots: Sequence[str]) -> str:
    """16 hexadecimal digits of the SHA-256 of all .py files in some folders, with their names."""
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
