"""Decides whether a training fits into the memory of its GPUs, and which changes would make it fit."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import Plan, plan
from .memory import Part

MOST_RANKS = 4096


class Verdict(NamedTuple):
    """Whether a training fits."""

    fits: bool
    needed: int  # bytes of GPU memory
    given: int
    largest: Part  # the largest part on the GPU
    remedies: dict[str, Any]  # new values of the case's fields, each of which alone makes it fit; empty if it fits


def judge(planned: Plan, given: int) -> Verdict:
    """Compares a plan with a GPU's memory in bytes. Raises ValueError if the case has no GPUs."""
    case = planned.case
    if case.device != "gpu":
        raise ValueError("device cpu has no GPU memory: omit --gpu-memory, or use --device gpu")
    needed = planned.memory("device")
    largest = max((part for part in planned.parts if part.place == "device"), key=lambda part: part.nbytes)
    # Values to try, the smallest changes first.
    changes: dict[str, Iterable[Any]] = {
        "ranks": range(case.ranks + 1, min(case.classes, MOST_RANKS) + 1),
        "batch": range(case.batch - 1, 0, -1),
        "ratio": (percent / 100 for percent in range(99, 0, -1) if percent / 100 < case.ratio),
        "logits_cache_mb": [0] if case.logits_cache_mb else [],
        "fp16": [True] if case.network and not case.fp16 else [],
        "center_dtype": ["bfloat16"] if case.trainer == "torch" and case.center_dtype == "float32" else [],
        "bank": ["host"] if case.bank == "gpu" else [],
    }
    remedies = {}
    for name, values in changes.items() if needed > given else ():
        for value in values:
            if plan(case._replace(**{name: value})).memory("device") <= given:
                remedies[name] = value
                break
    return Verdict(needed <= given, needed, given, largest, remedies)
