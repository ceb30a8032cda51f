"""Draws the second table of docs/words.md: differences to r = 1 and the speedup over the number of classes.

    .venv-torch/bin/python benchmarks/words_picture.py docs/words.md docs/words.png

It draws the page's table because its rows were measured at different times.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

TITLES = ("TAR at FAR 1e-6, points beside r = 1", "rank-1, points beside r = 1", "times as fast as r = 1")


class Row(NamedTuple):
    """A row of the table. Figures are (value, half-width of the interval)."""

    classes: int
    label: str
    figures: list[tuple[float, float]]  # by TITLES


def read_table(page: str) -> list[Row]:
    """Returns the rows with a single r and without correction of the table with the last column "times as fast"."""
    lines = iter(page.splitlines())
    next(line for line in lines if line.endswith("| times as fast |"))
    next(lines)  # the line below the heading
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        classes, _, wrong, ratio, _, _, _, *cells = line.strip("| ").split(" | ")
        label = f"r = {ratio}" + (f", {wrong} wrong labels" if wrong != "0 %" else "")
        parts = [cell.partition(" ± ")[::2] for cell in cells]
        if ratio.replace(".", "").isdigit():
            figures = [(float(value), float(margin or "nan")) for value, margin in parts]
            rows.append(Row(int(classes.replace(",", "")), label, figures))
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Draws a panel for each of TITLES with a line for each label."""
    figure, axes = pyplot.subplots(1, len(TITLES), figsize=(11, 3.4), layout="constrained")
    labels = sorted({row.label for row in rows})
    colors = {ratio: f"C{number}" for number, ratio in enumerate(sorted({label.split(",")[0] for label in labels}))}
    for label in labels:
        own, color = [row for row in rows if row.label == label], colors[label.split(",")[0]]
        style = {"marker": "s", "mfc": "none"} if "wrong" in label else {"marker": "o"}
        for panel, axis in enumerate(axes):
            values, margins = zip(*(row.figures[panel] for row in own))
            classes = [row.classes for row in own]
            axis.errorbar(classes, values, margins, capsize=3, label=label, color=color, **style)
    sizes = sorted({row.classes for row in rows})
    for axis, title, equal in zip(axes, TITLES, (0, 0, 1)):
        axis.axhline(equal, color="gray", linewidth=0.8)
        axis.set(title=title, xlabel="classes", xscale="log", xticks=sizes, xticklabels=[f"{size:,}" for size in sizes])
        axis.minorticks_off()
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="Markdown with the table")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    draw(read_table(args.page.read_text(encoding="utf-8")), args.picture)


if __name__ == "__main__":
    main()
