"""A picture of the cosines that the limits follow from."""

import io

import numpy as np

from partial_fc.training.report.drawing import styled_figure
from partial_fc.training.report.style import LINES, SOFT

from .find import Found

WIDTH, HEIGHT = 880, 320  # pixels
BINS = 100


def draw_cosines(found: Found) -> bytes:
    """Returns a PNG with the histograms of the cosines, and the limits as vertical lines."""
    kinds = {
        "to the own class": found.fit.figures.own,
        "to the nearest other class": found.other.best,
        "to a random other class": found.fit.between,
        "to an altered copy": found.copies,
    }
    file = io.BytesIO()
    with styled_figure("", figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, layout="constrained") as figure:
        axes = figure.add_subplot()
        for (name, values), color in zip(kinds.items(), LINES):
            values = values[np.isfinite(values)]
            share, edges = np.histogram(values, BINS, (-1, 1))
            axes.stairs(share / max(len(values), 1), edges, label=name, color=color)
        for name in ("far", "near", "duplicate", "person"):
            value = getattr(found.limits, name)
            axes.axvline(value, color=SOFT, linestyle=":", linewidth=1)
            axes.annotate(name, (value, 1), (2, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
        axes.set(xlabel="cosine", ylabel="share of the images", yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize="small", loc="upper left")
        figure.savefig(file, format="png")
    return file.getvalue()
