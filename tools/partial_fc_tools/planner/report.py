"""Formats a plan as tables or as JSON."""

from itertools import groupby
from typing import Any

from partial_fc.utils.tables import format_table
from partial_fc.utils.text import plural

from . import Plan
from .case import MIB
from .roofline import Time
from .verdict import Verdict

ESTIMATE_ERROR = 0.05  # relative error of the predicted memory
PLACES = ("device", "host", "file")
WIDTHS = (56, *[10] * len(PLACES))  # common columns of all tables
BANKS = {"device": "on the GPU", "host": "in the host's memory", "file": "in a file"}
TRAFFIC_HEADINGS = {
    "network": ("Between ranks", "sent", "received"),
    "bank": ("Bank", "read", "written"),
    "bus": ("Between host and GPU", "to the GPU", "from it"),
}


def as_text(planned: Plan, verdict: Verdict | None, times: list[Time]) -> str:
    """Returns the plan as text, memory in MiB and time in milliseconds."""
    lines = [*_heading(planned), "", *_memory_table(planned), "", *_traffic_tables(planned), ""]
    if times:
        lines += [*_times_table(planned, times), ""]
    if verdict is not None:
        lines.append(_verdict_text(verdict))
    return "\n".join(lines)


def as_numbers(planned: Plan, verdict: Verdict | None, times: list[Time]) -> dict[str, Any]:
    """Returns the plan for JSON, in bytes and seconds."""
    backbone = planned.backbone
    return {
        "case": {**planned.case._asdict(), "heads": {name: dict(fields) for name, fields in planned.case.heads}},
        "backbone": backbone and {name: getattr(backbone, name) for name in ("parameters", "multiplications")},
        "layer": planned.layer._asdict(),
        "memory": [part._asdict() for part in planned.parts],
        "memory_total": {place: planned.memory(place) for place in PLACES},
        "moves": [transfer._asdict() for transfer in planned.traffic],
        "times": [time._asdict() for time in times],
        "step_seconds": sum(time.seconds for time in times) or None,
        "samples_per_second": _speed(planned, times) if times else None,
        "verdict": None if verdict is None else {**verdict._asdict(), "largest": verdict.largest._asdict()},
    }


def _speed(planned: Plan, times: list[Time]) -> float:
    plans = (planned, *planned.heads)
    return sum(each.case.gradient_acc * each.layer.batch for each in plans) / sum(time.seconds for time in times)


def _heading(planned: Plan) -> list[str]:
    case, layer, backbone = planned.case, planned.layer, planned.backbone
    network = f"{case.network} in float{16 if case.fp16 else 32}" if backbone else "no backbone"
    logits = "are kept for" if layer.keeps else "are computed again in"
    batch = f"{case.gradient_acc} x {case.batch}" if case.gradient_acc > 1 else case.batch
    classes = f"{case.classes:,} classes" + (f" of {case.sub_centers} sub-centers" if case.sub_centers > 1 else "")
    in_16_bits, trainer = " in bfloat16" * layer.narrow, "PyTorch" if case.trainer == "torch" else "MXNet"
    lines = [
        f"{classes}, embedding {case.embedding}, {case.ranks} ranks x {batch} {case.items}, "
        f"r = {case.ratio:g}, bank {BANKS[layer.bank]}{in_16_bits}, {network}, {trainer}",
        f"A rank has {layer.classes:,} classes and samples {layer.sampled:,} of them in a step, "
        f"in {plural(layer.tiles, 'tile')} of {layer.tile:,}; logits {logits} the backward pass.",
    ]
    for (name, _), head in zip(case.heads, planned.heads):
        lines.append(
            f"Head {name}: {head.case.classes:,} classes, {head.case.batch} {case.items} a rank, r = "
            f"{head.case.ratio:g}; a rank has {head.layer.classes:,} classes and samples {head.layer.sampled:,}."
        )
    if backbone:
        sizes = f"{backbone.parameters / 1e6:.2f} M parameters and takes {backbone.multiplications / 1e9:.2f} GFLOPs"
        lines.append(f"{case.network} has {sizes} for an {case.items[:-1]} (a multiply-add counts as one).")
    return lines


def _memory_table(planned: Plan) -> list[str]:
    places = [place for place in PLACES if planned.memory(place)]
    rows = [("Memory of a rank, MiB", *places)]
    for group, parts in groupby(planned.parts, key=lambda part: part.group):
        rows.append((group, *("" for _ in places)))
        for part in parts:
            rows.append((f"  {part.name}", *(_mib(part.nbytes) if part.place == place else "" for place in places)))
    rows.append(("total", *(_mib(planned.memory(place)) for place in places)))
    return format_table(rows, min_widths=WIDTHS)


def _traffic_tables(planned: Plan) -> list[str]:
    lines = ["Bytes that a rank moves in a step, MiB"]
    for way, transfers in groupby(planned.traffic, key=lambda transfer: transfer.way):
        rows = [(f"  {transfer.name}", _mib(transfer.out), _mib(transfer.back)) for transfer in transfers]
        lines += format_table([TRAFFIC_HEADINGS[way], *rows], min_widths=WIDTHS)
    return lines


def _times_table(planned: Plan, times: list[Time]) -> list[str]:
    rows = [("Least time of a step", "ms", "limit")]
    rows += [(f"  {time.name}", f"{1e3 * time.seconds:,.2f}", time.limit) for time in times]
    rows.append(("total", f"{1e3 * sum(time.seconds for time in times):,.2f}", ""))
    speed = _speed(planned, times)
    last = f"At most {speed:,.0f} samples/s, {speed / planned.case.ranks:,.1f} per rank."
    return [*format_table(rows, min_widths=WIDTHS), last]


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
    lack = f"It does not fit: it needs {needed:.2f} of {given:.2f} GiB of a GPU{close}."
    return f"{lack} The largest part is {largest}. {hint}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f}"
