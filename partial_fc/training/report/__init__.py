"""Reports of a training: report.html and curves.png for people, summary.json and curves.json for programs."""

from .content import HardPair, Results, SetResult, write_summary
from .curves_json import CURVES, write_curves
from .page import draw_curves, write_page
from .roc import hardest_pairs, roc_curve

__all__ = [
    "CURVES",
    "HardPair",
    "Results",
    "SetResult",
    "draw_curves",
    "hardest_pairs",
    "roc_curve",
    "write_curves",
    "write_page",
    "write_summary",
]
