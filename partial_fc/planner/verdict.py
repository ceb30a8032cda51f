"""Whether a training fits into the memory of its GPUs, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import Plan, plan
from .case import Case
from .memory import Part

MOST_RANKS = 4096


class Verdict(NamedTuple):
    """Whether it fits.

    Attributes:
        fits: it does.
        needed, given: bytes of a GPU.
        largest: the part that needs most.
        remedies: changes of the case each of which alone makes it fit, by the name of what is changed; empty where it
            fits as it is.
    """

    fits: bool
    needed: int
    given: int
    largest: Part
    remedies: dict[str, Any]


def judge(planned: Plan, given: int) -> Verdict:
    """Judges a plan.

    Args:
        planned: of a case with GPUs.
        given: bytes of each GPU.

    Raises:
        ValueError: the case has no GPUs.
    """
    case = planned.case
    if case.device != "gpu":
        raise ValueError("there is no GPU memory to fit into with device cpu: ask for one of the two")
    needed = planned.memory("device")
    largest = max((part for part in planned.parts if part.place == "device"), key=lambda part: part.nbytes)
    return Verdict(needed <= given, needed, given, largest, {} if needed <= given else _remedies(case, given))


def _remedies(case: Case, given: int) -> dict[str, Any]:
    found = {}
    for name, values in _changes(case):
        for value in values:
            if plan(case._replace(**{name: value})).memory("device") <= given:
                found[name] = value
                break
    return found


def _changes(case: Case) -> list[tuple[str, Iterable[Any]]]:
    """For each quantity the values to try, the least change first."""
    return [
        ("ranks", range(case.ranks + 1, min(case.classes, MOST_RANKS) + 1)),
        ("batch", range(case.batch - 1, 0, -1)),
        ("ratio", (percent / 100 for percent in range(99, 0, -1) if percent / 100 < case.ratio)),
        ("logits_cache_mb", (0,) if case.logits_cache_mb else ()),
        ("fp16", () if case.fp16 or not case.network else (True,)),
        ("bank", ("host",) if case.bank == "gpu" else ()),
    ]
