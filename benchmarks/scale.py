"""Predicts step times on large clusters, as the tables and the chart of docs/scale.md. Nothing is measured.

python benchmarks/scale.py             # writes the tables in docs/scale.md and docs/scale.png
python benchmarks/scale.py --fit       # fits the constants of the cards to the published figures again, and prints them
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
from partial_fc.planner import Case, Plan, Transfer, plan  # noqa: E402
from partial_fc.planner.fitting import Measured, fit, predict  # noqa: E402
from partial_fc.planner.machine import CARDS, DATA_SHEETS, FITTED, V100  # noqa: E402
from partial_fc.planner.published import GPUS_PER_HOST, PUBLISHED, WEBFACE, Published  # noqa: E402
from partial_fc.planner.times import BACKWARD, FLOPS, Time, seconds_of, step_times  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402

PAGE, CHART = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.png"
PROGRAM = "benchmarks/scale.py"
RANKS = (8, 64, 512)
CLASSES = (10_000_000, 100_000_000, 1_000_000_000)
GIGABITS = (10, 25, 100)
GPU_GIB = 31  # usable memory of a card with 32 GB
HOST_GIB = 1024
CASE = Case(0, 1, ratio=0.1, network="r50", fp16=True)
MIDDLE = 25  # Gbit/s, for tables with a single network
LIMITED = (("r50", 8, 512), ("r100", 32, 128))  # published cases beside the limits of newer cards
# A published case of the same source with a backbone that this project has not: 1.5 G multiplications an image.
VIT_T_SPEED, VIT_T_MULTIPLICATIONS = 35_000, 1.5e9
GROUPS = {
    "backbone": ("backbone",),
    "layer": ("layer", "between host"),
    "features": ("all-gather of features",),
    "statistics": ("all-gather of statistics",),
    "feature gradient": ("reduce-scatter",),
    "all-reduce, not hidden": ("all-reduce",),
}


class Placement(NamedTuple):
    """The placement of a bank.

    Attributes:
        case: the case with its bank on the GPUs or the hosts.
        planned: its plan, or None if the bank fits nowhere.
        gpu_gib, host_gib: the memory that it needs on a GPU and on a host.
    """

    case: Case
    planned: Plan | None
    gpu_gib: float
    host_gib: float


def place(case: Case) -> Placement:
    """Places the bank on the GPUs if it fits there, and otherwise in the memory of the hosts."""
    for bank in ("gpu", "host"):
        planned = plan(case._replace(bank=bank))
        needed = planned.memory("device") / 2**30, GPUS_PER_HOST * planned.memory("host") / 2**30
        if needed[0] <= GPU_GIB and needed[1] <= HOST_GIB:
            return Placement(planned.case, planned, *needed)
    return Placement(case, None, *needed)


def times_of(planned: Plan, gigabits: float) -> list[Time]:
    """Returns the parts of a step on V100 cards."""
    return step_times(planned, V100.on(gigabits), GPUS_PER_HOST)


def speed(planned: Plan, gigabits: float) -> float:
    """Returns samples/s of all ranks."""
    return planned.layer.batch / seconds_of(times_of(planned, gigabits))


def grouped(times: list[Time]) -> dict[str, float]:
    """Returns the seconds that do not overlap with another part, by group."""
    return {
        group: sum(time.seconds - time.hidden for time in times if time.name.startswith(names))
        for group, names in GROUPS.items()
    }


# Tables -----------------------------------------------------------------------------------------------


def published_table() -> list[str]:
    """Returns a table of published and predicted speeds."""
    rows = []
    for row in PUBLISHED:
        case, several_hosts = row.case, row.case.ranks > GPUS_PER_HOST
        speeds = [predicted_speed(row, gigabits) for gigabits in (GIGABITS if several_hosts else GIGABITS[-1:])]
        card = row.card.split(",")[0]
        rows.append(
            (
                row.table,
                f"{case.ranks} {card}" if "hosts" not in row.table else f"{case.ranks}, not published",
                f"{case.network}{'' if case.fp16 else ' float32'}",
                f"{case.classes:,}",
                f"{case.batch}",
                f"{case.ratio:g}",
                f"{row.speed:,.0f}",
                " / ".join(f"{value:,.0f}" for value in speeds),
                "fitted" if row.fitted else " / ".join(f"{value / row.speed - 1:+.0%}" for value in speeds),
            )
        )
    heading = ("table", "cards", "backbone", "classes", "B", "r", "published", "model", "error")
    return markdown_table(heading, rows)


def limits_table() -> list[str]:
    """Returns a table of published speeds of arcface_torch beside the limits on newer cards."""
    rows = []
    for row in PUBLISHED:
        if row.table == "PyTorch, hosts" and (row.case.network, row.case.ranks, row.case.batch) in LIMITED:
            rows.append(limits_row(row.case.network, row.case, row.speed, 0))
    case = Case(WEBFACE, 64, 384, ratio=0.3, fp16=True, logits_cache_mb=1 << 20)
    rows.append(limits_row("ViT-T", case, VIT_T_SPEED, VIT_T_MULTIPLICATIONS))
    heading = ("backbone", "cards", "B", "r", "published", *(f"limit of {card}" for card in DATA_SHEETS))
    return markdown_table((*heading, *(f"published / limit of {card}" for card in DATA_SHEETS)), rows)


def limits_row(backbone: str, case: Case, published: float, multiplications: float) -> tuple[str, ...]:
    """Returns a row of limits_table, with the products of a backbone that the planner does not know."""
    planned, speeds = plan(case._replace(trainer="torch")), []
    for machine in DATA_SHEETS.values():
        seconds = seconds_of(step_times(planned, machine.on(GIGABITS[-1]), GPUS_PER_HOST))
        seconds += FLOPS * (1 + BACKWARD) * multiplications * case.batch / machine.half_flops
        speeds.append(case.ranks * case.batch / seconds)
    cells = f"{case.ranks}, not published", f"{case.batch}", f"{case.ratio:g}", f"{published:,.0f}"
    return backbone, *cells, *(f"{speed:,.0f}" for speed in speeds), *(f"{published / speed:.0%}" for speed in speeds)


def predicted_speed(row: Published, gigabits: float) -> float:
    """Returns samples/s of a published case."""
    seconds = predict(CARDS[row.card].on(gigabits), measured_step(row))
    return row.case.ranks * row.case.batch / seconds


def measured_step(row: Published) -> Measured:
    """Returns a published figure as a measured step."""
    return Measured(row.case, GPUS_PER_HOST, row.seconds)


def prediction_table() -> list[str]:
    """Returns a table of every number of ranks with every number of classes."""
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
            largest = max(parts, key=parts.__getitem__)
            rows.append(
                (
                    f"{classes // 10**6:,} M",
                    str(ranks),
                    {"gpu": "GPU", "host": "host"}[placed.case.bank],
                    *needed,
                    *(f"{value:,.0f}" for value in speeds),
                    f"{speeds[GIGABITS.index(MIDDLE)] / ranks:,.1f}",
                    f"{largest}, {parts[largest] / sum(parts.values()):.0%}",
                )
            )
    heading = ("classes", "ranks", "bank", "GiB per GPU", "GiB per host")
    heading += tuple(f"samples/s, {gigabits} Gbit/s" for gigabits in GIGABITS)
    return markdown_table((*heading, f"per GPU, {MIDDLE} Gbit/s", f"largest part, {MIDDLE} Gbit/s"), rows)


def parts_table(classes: int = CLASSES[0]) -> list[str]:
    """Returns a table of milliseconds by part. The classes must fit on the GPUs."""
    rows = []
    for ranks in (8, 16, 32, 64, 128, 256, 512):
        planned = place(CASE._replace(classes=classes, ranks=ranks)).planned
        assert planned is not None
        parts = grouped(times_of(planned, MIDDLE))
        share = speed(planned, MIDDLE) / ranks
        rows.append((str(ranks), *(f"{1e3 * value:,.1f}" for value in parts.values()), f"{share:,.0f}"))
    return markdown_table(("ranks", *parts, "samples/s per GPU"), rows)


def changes() -> Iterator[tuple[str, Case, bool]]:
    """Yields (name of the change, case, whether an all-reduce exchanges the statistics)."""
    base = CASE._replace(ranks=RANKS[-1], classes=CLASSES[1])
    yield "none", base, False
    yield "statistics by all-reduce", base, True
    yield "B = 128", base._replace(batch=128), False
    yield "r = 0.02", base._replace(ratio=0.02), False
    yield "r = 0.02, statistics by all-reduce", base._replace(ratio=0.02), True
    yield "r = 0.02, statistics by all-reduce, B = 128", base._replace(ratio=0.02, batch=128), True


def changes_table() -> list[str]:
    """Returns a table of samples/s with each change, for 512 ranks and 100 million classes."""
    rows = []
    for change, case, reduced in changes():
        planned = plan(case)
        if reduced:
            planned = planned._replace(traffic=[reduced_statistics(planned, transfer) for transfer in planned.traffic])
        rows.append((change, *(f"{speed(planned, gigabits):,.0f}" for gigabits in GIGABITS)))
    return markdown_table(("change", *(f"samples/s, {gigabits} Gbit/s" for gigabits in GIGABITS)), rows)


def reduced_statistics(planned: Plan, transfer: Transfer) -> Transfer:
    """Replaces the all-gather of statistics by an all-reduce of three numbers per row; the layer has no such option."""
    if "(softmax_statistics)" not in transfer.name:
        return transfer
    ranks = planned.case.ranks
    nbytes = transfer.out // (ranks - 1) * 2 * (ranks - 1) // ranks
    return transfer._replace(out=nbytes, back=nbytes)


# Chart ------------------------------------------------------------------------------------------------


def draw(path: Path) -> None:
    """Draws samples/s over the ranks, and the parts of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    rank_counts = [2**power for power in range(3, 10)]
    for classes, color in zip(CLASSES, ("#4477aa", "#ee6677", "#228833")):
        for gigabits, style in zip(GIGABITS, (":", "--", "-")):
            plans = [place(CASE._replace(classes=classes, ranks=ranks)).planned for ranks in rank_counts]
            points = [(ranks, speed(planned, gigabits)) for ranks, planned in zip(rank_counts, plans) if planned]
            label = f"{classes // 10**6:,} M classes" if gigabits == GIGABITS[-1] else None
            left.plot(*zip(*points), style, color=color, label=label)
    left.plot([], [], " ", label="network: 10 dotted, 25 dashed, 100 solid")
    left.set(
        xscale="log",
        yscale="log",
        xlabel="ranks (8 per host)",
        ylabel="samples/s",
        title="r50, float16, B = 64, r = 0.1",
    )
    left.set_xticks(rank_counts, list(map(str, rank_counts)))
    left.legend(fontsize=8)
    draw_parts(right, rank_counts)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def draw_parts(axes, rank_counts: list[int]) -> None:
    """Draws stacked milliseconds for the smallest number of classes."""
    plans = [plan(CASE._replace(classes=CLASSES[0], ranks=ranks)) for ranks in rank_counts]
    steps = [grouped(times_of(planned, MIDDLE)) for planned in plans]
    bottom = [0.0] * len(steps)
    for group, color in zip(GROUPS, ("#bbbbbb", "#4477aa", "#ccbb44", "#ee6677", "#aa3377", "#66ccee")):
        heights = [1e3 * parts[group] for parts in steps]
        axes.bar(list(map(str, rank_counts)), heights, bottom=bottom, label=group, color=color)
        bottom = [low + height for low, height in zip(bottom, heights)]
    title = f"one step, {CLASSES[0] // 10**6} M classes, {MIDDLE} Gbit/s"
    axes.set(xlabel="ranks (8 per host)", ylabel="ms", title=title)
    axes.legend(fontsize=8)


TABLES = {
    "published": published_table,
    "limits": limits_table,
    "prediction": prediction_table,
    "parts": parts_table,
    "changes": changes_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the constants of the cards to published figures")
    if parser.parse_args().fit:
        for card, names in FITTED.items():
            steps = [measured_step(row) for row in PUBLISHED if row.card == card and row.fitted]
            fitted = fit(CARDS[card], names, steps)
            print(card, ", ".join(f"{name} {getattr(fitted, name):.3g}" for name in names))
        return
    for name, make in TABLES.items():
        lines = make()
        print("\n".join([name, *lines, ""]))
        put(PAGE, name, PROGRAM, lines)
    draw(CHART)


if __name__ == "__main__":
    main()
