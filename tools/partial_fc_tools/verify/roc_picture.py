"""ROC curves as a picture."""

from collections.abc import Mapping, Sequence

import numpy as np

from partial_fc.utils.text import one_line

Curve = tuple[np.ndarray, np.ndarray]


def draw_roc(curves: Mapping[str, Curve], lowest_far: float, title: str, paths: Sequence[str]) -> None:
    """Draws ROC curves into files, whose extensions determine the formats.

    A single curve has no legend.

    Args:
        curves: name -> (FAR, ascending, and TAR).
        lowest_far: where the axis begins.
        title: title of the picture.
        paths: the files.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8))  # not pyplot, which keeps global state and may need a display
    axes = figure.add_axes((0.1, 0.11, 0.86, 0.81))
    lowest = 1.0
    for name, (far, tar) in curves.items():
        axes.step(far, 100 * tar, where="post", linewidth=1.5, label=_printable(name))  # TAR changes only at the points
        lowest = min(lowest, float(tar[far <= 0.1].min(initial=tar.max())))
    axes.set_xscale("log")
    axes.set_xlim(lowest_far, 1)
    axes.set_ylim(max(0.0, np.floor(lowest * 10) * 10 - 1), 101)
    axes.set_xlabel("FAR")
    axes.set_ylabel("TAR (%)")
    axes.set_title(_printable(title), parse_math=False)
    axes.grid(True, which="major", linestyle="--", linewidth=0.5)
    if len(curves) > 1:
        for text in axes.legend(loc="lower right", fontsize="small").get_texts():
            text.set_parse_math(False)
    for path in paths:
        # Without the date, equal results give equal bytes.
        metadata = {"CreationDate": None} if path.endswith(".pdf") else {}
        figure.savefig(path, dpi=150, metadata=metadata)


def _printable(name: str) -> str:
    # Matplotlib hides labels that begin with "_".
    return one_line(name).lstrip("_")
