"""Plot of loss and accuracy: ``curves.png``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Points = Sequence[tuple[int, float]]


def draw_curves(
    path: str, title: str, losses: Points, accuracies: Mapping[str, Points], baseline: float | None
) -> None:
    """Draws loss and verification accuracy over the updates.

    Args:
        path: PNG to write.
        title: Title of the figure.
        losses: (update, loss).
        accuracies: Set -> (update, accuracy).
        baseline: Accuracy to draw as a dashed line, or None.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    left.plot(*_columns(losses))
    left.set(xlabel="update", ylabel="loss")
    for name, points in accuracies.items():
        right.plot(*_columns(points), marker="o", label=name)
    if baseline is not None:
        right.axhline(baseline, linestyle="--", color="gray", label="raw pixels")
    right.set(xlabel="update", ylabel="10-fold accuracy")
    if right.get_legend_handles_labels()[0]:
        right.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _columns(points: Points) -> tuple[list, list]:
    return [x for x, _ in points], [y for _, y in points]
