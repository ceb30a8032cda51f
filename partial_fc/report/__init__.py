"""What a finished training leaves: a page and the curves for people (report.html, curves.png), figures for programs
(summary.json)."""

from partial_fc.report.curves_png import draw_curves
from partial_fc.report.page import write_page
from partial_fc.report.results import HardPair, Results, SetResult
from partial_fc.report.roc import hardest_pairs, roc_curve
from partial_fc.report.summary import write_summary

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
