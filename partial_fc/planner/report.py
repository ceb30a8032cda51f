"""A plan as tables for people, and as numbers for programs."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from partial_fc.utils.tables import format_table

from . import Plan
from .memory import MIB
from .times import Time, seconds_of
from .verdict import Verdict

CLOSE = 0.05  # share of the memory
PLACES = ("device", "host", "file")
WIDTHS = (56, *[10] * len(PLACES))  # columns of all tables, which stand below each other
_COLUMNS = {
    "network": ("Sent to the other ranks and received", "sent", "received"),
    "bank": ("Of the bank's memory", "read", "written"),
    "bus": ("Between host and GPU", "to the GPU", "from it"),
    "file": ("Of the bank's files", "read", "written"),
}
_NAMES = {"ranks": "--ranks", "batch": "--batch", "ratio": "--ratio", "logits_cache_mb": "--kept-mb", "bank": "--bank"}


def format_plan(planned: Plan, verdict: Verdict | None, times: list[Time]) -> str:
    """Everything as text; memory is in MiB, 2^20 bytes, time in milliseconds."""
    lines = [
        *_heading(planned),
        "",
        *_memory_table(planned),
        "",
        *_moves_tables(planned),
        *_times_table(planned, times),
    ]
    return "\n".join([*lines, *([] if verdict is None else [_sentence(verdict)])])


def numbers(planned: Plan, verdict: Verdict | None, times: list[Time]) -> dict[str, Any]:
    """Everything for JSON; numbers are bytes and seconds."""
    seconds = seconds_of(times)
    return {
        "case": planned.case._asdict(),
        "layer": planned.layer._asdict(),
        "memory": [part._asdict() for part in planned.parts],
        "memory_total": {place: planned.memory(place) for place in PLACES},
        "moves": [move._asdict() for move in planned.traffic],
        "times": [time._asdict() for time in times],
        "step_seconds": seconds or None,
        "samples_per_second": planned.layer.batch / seconds if times else None,
        "verdict": None if verdict is None else {**verdict._asdict(), "largest": verdict.largest._asdict()},
    }


def _heading(planned: Plan) -> list[str]:
    case, layer = planned.case, planned.layer
    backbone = f"{case.network} in float{16 if case.fp16 else 32}" if case.network else "no backbone"
    where = {"device": "on the GPU", "host": "in the host's memory", "file": "in a file"}[layer.bank]
    walk = "logits kept between the two walks" if layer.keeps else "logits computed in both walks"
    return [
        f"{case.classes:,} classes, embedding {case.embedding}, {case.ranks} ranks x {case.batch} images, "
        f"r = {case.ratio:g}, bank {where}, {backbone}",
        f"A rank has {layer.classes:,} classes, {layer.sampled:,} of them in a step, "
        f"in {layer.tiles} tile{'s' * (layer.tiles > 1)} of {layer.tile:,}; {walk}.",
    ]


def _memory_table(planned: Plan) -> list[str]:
    places = [place for place in PLACES if planned.memory(place)]
    rows = [("Memory of a rank, MiB", *places)]
    for group, parts in groupby(planned.parts, key=lambda part: part.group):
        rows.append((group, *("" for _ in places)))
        rows += [
            (f"  {part.name}", *(_mib(part.nbytes) if part.place == place else "" for place in places))
            for part in parts
        ]
    rows.append(("in all", *(_mib(planned.memory(place)) for place in places)))
    return format_table(rows, min_widths=WIDTHS)


def _moves_tables(planned: Plan) -> list[str]:
    lines = ["Bytes that a rank moves in a step, MiB"]
    for way, moves in groupby(planned.traffic, key=lambda move: move.way):
        group = [(f"  {move.name}", _mib(move.out), _mib(move.back)) for move in moves]
        lines += format_table([_COLUMNS[way], *group], min_widths=WIDTHS)
    return [*lines, ""]


def _times_table(planned: Plan, times: list[Time]) -> list[str]:
    if not times:
        return []
    rows: list[tuple[str, ...]] = [("Time of a step on V100 cards, ms", "takes", "hidden")]
    rows += [(f"  {time.name}", _milliseconds(time.seconds), _milliseconds(time.hidden)) for time in times]
    rows.append(("in all, less what is hidden", _milliseconds(seconds_of(times)), ""))
    speed = planned.layer.batch / seconds_of(times)
    return [
        *format_table(rows, min_widths=WIDTHS),
        f"{speed:,.0f} samples/s, {speed / planned.case.ranks:,.1f} of a GPU.",
        "",
    ]


def _sentence(verdict: Verdict) -> str:
    needed, given = verdict.needed / 2**30, verdict.given / 2**30
    close = ", by less than the error of this estimate: try it" if abs(needed - given) < CLOSE * given else ""
    if verdict.fits:
        return f"It fits: {needed:.2f} of {given:.2f} GiB of a GPU, {1 - needed / given:.0%} to spare{close}."
    told = ", or ".join(_told(name, value) for name, value in verdict.remedies.items())
    remedy = f"It would fit with {told}." if told else "No single change makes it fit."
    largest = f"{verdict.largest.group}: {verdict.largest.name} ({verdict.largest.nbytes / 2**30:.2f} GiB)"
    return (
        f"It does not fit: {needed:.2f} GiB are more than a GPU's {given:.2f}{close}. The largest part is {largest}. "
        f"{remedy}"
    )


def _told(name: str, value: Any) -> str:
    return f"--{name}" if value is True else f"{_NAMES[name]} {value}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}" if seconds else ""
