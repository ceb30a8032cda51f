"""The ROC curve as a picture."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from .verification import FARS


def draw_roc(far: np.ndarray, tar: np.ndarray, title: str, paths: list[str]) -> None:
    """Write the curve (points,) to each of `paths`, in the format of its ending. OSError if one cannot be written."""
    figure = Figure(figsize=(6.4, 4.8))  # without pyplot: no display, no global state
    axes = figure.add_axes((0.1, 0.11, 0.86, 0.81))
    # Between two points the FAR that is used up stays that of the left one.
    axes.step(far, 100 * tar, where="post", linewidth=1.5)
    axes.set_xscale("log")
    axes.set_xlim(FARS[0], 1)
    lowest = float(tar[far <= FARS[-1]].min(initial=tar.max()))
    axes.set_ylim(max(0.0, np.floor(lowest * 10) * 10 - 1), 101)
    axes.set_xlabel("FAR")
    axes.set_ylabel("TAR (%)")
    # A name of a file: no formula, and perhaps with bytes that are no text.
    axes.set_title(title.encode("utf-8", "backslashreplace").decode(), parse_math=False)
    axes.grid(True, which="major", linestyle="--", linewidth=0.5)
    for path in paths:
        # Without the date the same results give the same bytes.
        dated = {"CreationDate": None} if path.endswith(".pdf") else {}
        figure.savefig(path, dpi=150, metadata=dated)
