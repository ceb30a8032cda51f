"""What a finished training leaves: a page and the curves for people (report.html, curves.png), figures for programs
(summary.json)."""

from .curves_png import draw_curves
from .page import write_page
from .results import HardPair, Results, SetResult
from .roc import hardest_pairs, roc_curve
from .summary import write_summary

__all__ = [
    "HardPair",
    "Results",
    "SetResult",
    "draw_curves",
    "hardest_pairs",
    "roc_curve",
    "write_page",
    "write_summary",
]
