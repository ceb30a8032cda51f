"""Formats a plan as tables or as JSON."""

from itertools import groupby
from typing import Any

from partial_fc.utils.tables import format_table
from partial_fc.utils.text import plural

from . import Plan
from .case import MIB, item_name, multiplications, parameters
from .roofline import Time
from .verdict import Verdict

ESTIMATE_ERROR = 0.05  # share of the memory
PLACES = ("device", "host", "file")
WIDTHS = (56, *[10] * len(PLACES))  # common columns of all tables
_COLUMNS = {
    "network": ("Between ranks", "sent", "received"),
    "bank": ("Memory of the bank", "read", "written"),
    "bus": ("Between host and GPU", "to the GPU", "from it"),
    "file": ("Files of the bank", "read", "written"),
}


def format_plan(planned: Plan, verdict: Verdict | None, times: list[Time]) -> str:
    """Returns the plan as text, memory in MiB and time in milliseconds."""
    tables = [*_memory_table(planned), "", *_traffic_tables(planned), *_times_table(planned, times)]
    return "\n".join([*_heading(planned), "", *tables, *([] if verdict is None else [_verdict_text(verdict)])])


def numbers(planned: Plan, verdict: Verdict | None, times: list[Time]) -> dict[str, Any]:
    """Returns the plan for JSON, in bytes and seconds."""
    seconds = sum(time.seconds for time in times)
    return {
        "case": planned.case._asdict(),
        "backbone": _backbone(planned),
        "layer": planned.layer._asdict(),
        "memory": [part._asdict() for part in planned.parts],
        "memory_total": {place: planned.memory(place) for place in PLACES},
        "moves": [transfer._asdict() for transfer in planned.traffic],
        "times": [time._asdict() for time in times],
        "step_seconds": seconds or None,
        "samples_per_second": _images(planned) / seconds if times else None,
        "verdict": None if verdict is None else {**verdict._asdict(), "largest": verdict.largest._asdict()},
    }


def _heading(planned: Plan) -> list[str]:
    case, layer = planned.case, planned.layer
    backbone = f"{case.network} in float{16 if case.fp16 else 32}" if case.network else "no backbone"
    bank = {"device": "on the GPU", "host": "in the host's memory", "file": "in a file"}[layer.bank]
    logits = "are kept for" if layer.keeps else "are computed again in"
    images = f"{case.gradient_acc} x {case.batch}" if case.gradient_acc > 1 else case.batch
    trainer = "PyTorch" if case.trainer == "torch" else "MXNet"
    lines = [
        f"{case.classes:,} classes, embedding {case.embedding}, {case.ranks} ranks x {images} {item_name(case)}, "
        f"r = {case.ratio:g}, bank {bank}, {backbone}, {trainer}",
        f"A rank has {layer.classes:,} classes and samples {layer.sampled:,} of them in a step, "
        f"in {plural(layer.tiles, 'tile')} of {layer.tile:,}; logits {logits} the backward pass.",
    ]
    sizes = _backbone(planned)
    if sizes:
        lines.append(
            f"{case.network} has {sizes['parameters'] / 1e6:.2f} M parameters and takes "
            f"{sizes['multiplications'] / 1e9:.2f} GFLOPs for an {item_name(case, 1)}, "
            "each a multiplication with its addition."
        )
    return lines


def _backbone(planned: Plan) -> dict[str, int] | None:
    case = planned.case
    if not case.network:
        return None
    return {"parameters": sum(parameters(case)), "multiplications": multiplications(case)}


def _images(planned: Plan) -> int:
    """Number of images of an update, of all ranks."""
    return planned.case.gradient_acc * planned.layer.batch


def _memory_table(planned: Plan) -> list[str]:
    places = [place for place in PLACES if planned.memory(place)]
    rows = [("Memory of a rank, MiB", *places)]
    for group, parts in groupby(planned.parts, key=lambda part: part.group):
        rows.append((group, *("" for _ in places)))
        rows += [
            (f"  {part.name}", *(_mib(part.nbytes) if part.place == place else "" for place in places))
            for part in parts
        ]
    rows.append(("total", *(_mib(planned.memory(place)) for place in places)))
    return format_table(rows, min_widths=WIDTHS)


def _traffic_tables(planned: Plan) -> list[str]:
    lines = ["Bytes that a rank moves in a step, MiB"]
    for way, transfers in groupby(planned.traffic, key=lambda transfer: transfer.way):
        group = [(f"  {transfer.name}", _mib(transfer.out), _mib(transfer.back)) for transfer in transfers]
        lines += format_table([_COLUMNS[way], *group], min_widths=WIDTHS)
    return [*lines, ""]


def _times_table(planned: Plan, times: list[Time]) -> list[str]:
    if not times:
        return []
    seconds = sum(time.seconds for time in times)
    rows = [("Least time of a step", "ms", "limit")]
    rows += [(f"  {time.name}", f"{1e3 * time.seconds:,.2f}", time.limit) for time in times]
    rows.append(("total", f"{1e3 * seconds:,.2f}", ""))
    speed = _images(planned) / seconds
    return [
        *format_table(rows, min_widths=WIDTHS),
        f"At most {speed:,.0f} samples/s, {speed / planned.case.ranks:,.1f} per rank.",
        "",
    ]


def _verdict_text(verdict: Verdict) -> str:
    needed, given = verdict.needed / 2**30, verdict.given / 2**30
    is_close = abs(needed - given) < ESTIMATE_ERROR * given
    close = "; the difference is below the error of this estimate: try it" if is_close else ""
    if verdict.fits:
        return f"It fits: {needed:.2f} of {given:.2f} GiB of a GPU, {1 - needed / given:.0%} free{close}."
    values = {name.replace("_", "-"): "" if value is True else f" {value}" for name, value in verdict.remedies.items()}
    options = ", or ".join(f"--{name}{value}" for name, value in values.items())
    hint = f"It would fit with {options}." if options else "No single change makes it fit."
    largest = f"{verdict.largest.group}: {verdict.largest.name} ({verdict.largest.nbytes / 2**30:.2f} GiB)"
    return (
        f"It does not fit: it needs {needed:.2f} of {given:.2f} GiB of a GPU{close}. The largest part is {largest}. "
        f"{hint}"
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f}"
