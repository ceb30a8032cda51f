"""What the step-time model says of large clusters, as tables and a chart: docs/scale.md. It measures nothing.

python benchmarks/scale.py             # writes the tables in docs/scale.md and docs/scale.png
python benchmarks/scale.py --fit       # fits the cards' figures to what was published once more, and prints them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.doc_tables import put  # noqa: E402
from partial_fc.planner import Case, Plan, plan  # noqa: E402
from partial_fc.planner.fitting import Measured, fit, predict  # noqa: E402
from partial_fc.planner.machine import CARDS, FITTED, V100  # noqa: E402
from partial_fc.planner.published import GPUS_PER_HOST, PUBLISHED  # noqa: E402
from partial_fc.planner.times import Time, seconds_of, step_times  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

PAGE, CHART = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.png"
PROGRAM = "benchmarks/scale.py"
RANKS = (8, 64, 512)
CLASSES = (10_000_000, 100_000_000, 1_000_000_000)
GIGABITS = (10, 25, 100)
GPU_GIB = 31  # what 32 GB cards have, less what nobody gets
HOST_GIB = 1024
CASE = Case(0, 1, ratio=0.1, network="r50", fp16=True)
MIDDLE = 25  # Gbit/s where one network stands for all
GROUPS = {
    "backbone": ("backbone",),
    "layer": ("layer", "between host"),
    "features": ("all-gather of features",),
    "statistics": ("all-gather of statistics",),
    "feature gradient": ("reduce-scatter",),
    "all-reduce, not hidden": ("all-reduce",),
}


class Placed(NamedTuple):
    """A case and what it needs; ``planned`` is None where it fits nowhere."""

    case: Case
    planned: Plan | None
    gpu_gib: float
    host_gib: float


def place(case: Case) -> Placed:
    """With the bank on the GPUs where that fits, else in the hosts' memory."""
    for bank in ("gpu", "host"):
        planned = plan(case._replace(bank=bank))
        needed = planned.memory("device") / 2**30, GPUS_PER_HOST * planned.memory("host") / 2**30
        if needed[0] <= GPU_GIB and needed[1] <= HOST_GIB:
            return Placed(planned.case, planned, *needed)
    return Placed(case, None, *needed)


def times_of(planned: Plan, gigabits: float) -> list[Time]:
    return step_times(planned, V100.on(gigabits), GPUS_PER_HOST)


def speed(planned: Plan, gigabits: float) -> float:
    """Samples a second of all ranks."""
    return planned.layer.batch / seconds_of(times_of(planned, gigabits))


def grouped(times: list[Time]) -> dict[str, float]:
    """Seconds that are not hidden, by group."""
    return {
        group: sum(time.seconds - time.hidden for time in times if time.name.startswith(names))
        for group, names in GROUPS.items()
    }


# Tables -----------------------------------------------------------------------------------------------


def published_table() -> list[str]:
    """Published beside foretold."""
    rows = []
    for one in PUBLISHED:
        case, several = one.case, one.case.ranks > GPUS_PER_HOST
        told = [foretold(one, gigabits) for gigabits in (GIGABITS if several else GIGABITS[-1:])]
        rows.append(
            (
                one.table,
                f"{case.ranks} {one.card.split(',')[0]}" if "hosts" not in one.table else f"{case.ranks}, not told",
                f"{case.network}{'' if case.fp16 else ' float32'}",
                f"{case.classes:,}",
                f"{case.batch}",
                f"{case.ratio:g}",
                f"{one.speed:,.0f}",
                " / ".join(f"{value:,.0f}" for value in told),
                "fitted" if one.fitted else " / ".join(f"{value / one.speed - 1:+.0%}" for value in told),
            )
        )
    heading = ("table", "cards", "backbone", "classes", "B", "r", "published", "model", "error")
    return markdown_table(heading, rows)


def foretold(one, gigabits: float) -> float:
    """Samples a second of a published case."""
    seconds = predict(CARDS[one.card].on(gigabits), Measured(one.case, GPUS_PER_HOST, one.seconds))
    return one.case.ranks * one.case.batch / seconds


def prediction_table() -> list[str]:
    """Every number of ranks with every number of classes."""
    rows = []
    for classes in CLASSES:
        for ranks in RANKS:
            placed = place(CASE._replace(classes=classes, ranks=ranks))
            needed = f"{placed.gpu_gib:,.1f}", f"{placed.host_gib:,.0f}"
            if placed.planned is None:
                rows.append((f"{classes // 10**6:,} M", str(ranks), "does not fit", *needed, *["-"] * 5))
                continue
            speeds = [speed(placed.planned, gigabits) for gigabits in GIGABITS]
            parts = grouped(times_of(placed.planned, MIDDLE))
            most = max(parts, key=parts.__getitem__)
            rows.append(
                (
                    f"{classes // 10**6:,} M",
                    str(ranks),
                    {"gpu": "GPU", "host": "host"}[placed.case.bank],
                    *needed,
                    *(f"{value:,.0f}" for value in speeds),
                    f"{speeds[GIGABITS.index(MIDDLE)] / ranks:,.1f}",
                    f"{most}, {parts[most] / sum(parts.values()):.0%}",
                )
            )
    heading = ("classes", "ranks", "bank", "GiB a GPU", "GiB a host")
    heading += tuple(f"samples/s, {gigabits} Gbit/s" for gigabits in GIGABITS)
    return markdown_table((*heading, f"of a GPU, {MIDDLE} Gbit/s", f"most of the step, {MIDDLE} Gbit/s"), rows)


def parts_table(classes: int = CLASSES[0]) -> list[str]:
    """Milliseconds by part, where all fit on the GPUs."""
    rows = []
    for ranks in (8, 16, 32, 64, 128, 256, 512):
        planned = place(CASE._replace(classes=classes, ranks=ranks)).planned
        assert planned is not None
        parts = grouped(times_of(planned, MIDDLE))
        share = speed(planned, MIDDLE) / ranks
        rows.append((str(ranks), *(f"{1e3 * value:,.1f}" for value in parts.values()), f"{share:,.0f}"))
    return markdown_table(("ranks", *parts, "samples/s of a GPU"), rows)


def remedies() -> Iterator[tuple[str, Case, bool]]:
    """(what is changed, the case, whether the statistics go by all-reduce)."""
    base = CASE._replace(ranks=RANKS[-1], classes=CLASSES[1])
    yield "as it is", base, False
    yield "statistics by all-reduce", base, True
    yield "B = 128", base._replace(batch=128), False
    yield "r = 0.02", base._replace(ratio=0.02), False
    yield "r = 0.02, statistics by all-reduce", base._replace(ratio=0.02), True
    yield "r = 0.02, statistics by all-reduce, B = 128", base._replace(ratio=0.02, batch=128), True


def remedies_table() -> list[str]:
    """Samples a second of 512 ranks and 100 million classes with each change."""
    rows = []
    for what, case, reduced in remedies():
        planned = plan(case)
        if reduced:
            planned = planned._replace(traffic=[reduced_statistics(planned, move) for move in planned.traffic])
        rows.append((what, *(f"{speed(planned, gigabits):,.0f}" for gigabits in GIGABITS)))
    return markdown_table(("change", *(f"samples/s, {gigabits} Gbit/s" for gigabits in GIGABITS)), rows)


def reduced_statistics(planned: Plan, move):
    """Three numbers a row, summed on the way round instead of brought to every rank. The layer has no such exchange."""
    if "(softmax_statistics)" not in move.name:
        return move
    ranks = planned.case.ranks
    nbytes = move.out // (ranks - 1) * 2 * (ranks - 1) // ranks
    return move._replace(out=nbytes, back=nbytes)


# Chart ------------------------------------------------------------------------------------------------


def draw(path: Path) -> None:
    """Samples a second over the ranks, and the parts of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    steps = [2**power for power in range(3, 10)]
    for classes, color in zip(CLASSES, ("#4477aa", "#ee6677", "#228833")):
        for gigabits, style in zip(GIGABITS, (":", "--", "-")):
            placed = [place(CASE._replace(classes=classes, ranks=ranks)).planned for ranks in steps]
            points = [(ranks, speed(one, gigabits)) for ranks, one in zip(steps, placed) if one is not None]
            label = f"{classes // 10**6:,} M classes" if gigabits == GIGABITS[-1] else None
            left.plot(*zip(*points), style, color=color, label=label)
    left.plot([], [], " ", label="network: 10 dotted, 25 dashed, 100 solid")
    left.set(
        xscale="log", yscale="log", xlabel="ranks, 8 a host", ylabel="samples/s", title="r50, float16, B = 64, r = 0.1"
    )
    left.set_xticks(steps, [str(one) for one in steps])
    left.legend(fontsize=8)
    draw_parts(right, steps)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def draw_parts(axes, steps: list[int]) -> None:
    """Stacked milliseconds for the least classes."""
    planned = [plan(CASE._replace(classes=CLASSES[0], ranks=ranks)) for ranks in steps]
    parts = [grouped(times_of(one, MIDDLE)) for one in planned]
    bottom = [0.0] * len(steps)
    for group, color in zip(GROUPS, ("#bbbbbb", "#4477aa", "#ccbb44", "#ee6677", "#aa3377", "#66ccee")):
        heights = [1e3 * one[group] for one in parts]
        axes.bar([str(one) for one in steps], heights, bottom=bottom, label=group, color=color)
        bottom = [low + height for low, height in zip(bottom, heights)]
    title = f"a step, {CLASSES[0] // 10**6} M classes, {MIDDLE} Gbit/s"
    axes.set(xlabel="ranks, 8 a host", ylabel="ms", title=title)
    axes.legend(fontsize=8)


TABLES = {
    "published": published_table,
    "prediction": prediction_table,
    "parts": parts_table,
    "remedies": remedies_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="print the cards' figures as the fit gives them")
    if parser.parse_args().fit:
        for card, names in FITTED.items():
            rows = [one for one in PUBLISHED if one.card == card and one.fitted]
            found = fit(CARDS[card], names, [Measured(one.case, GPUS_PER_HOST, one.seconds) for one in rows])
            print(card, ", ".join(f"{name} {getattr(found, name):.3g}" for name in names))
        return
    for name, make in TABLES.items():
        lines = make()
        print("\n".join([name, *lines, ""]))
        put(PAGE, name, PROGRAM, lines)
    draw(CHART)


if __name__ == "__main__":
    main()
