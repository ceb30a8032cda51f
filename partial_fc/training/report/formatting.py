"""Formats figures for people; values that were not measured are shown as such."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

NOT_MEASURED = "not measured"
HUGE = 1e12
SPACE = "\N{NARROW NO-BREAK SPACE}"  # between a number and its unit


def is_measured(value: Any) -> bool:
    """Returns whether a value is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)


def finite(value: Any) -> float:
    """Returns the value as float, or NaN if it is not a finite number."""
    return float(value) if is_measured(value) else math.nan


def number(value: Any, digits: int = 0, unit: str = "") -> str:
    """Formats a number: "1,604.6 images/s"; "1e+30" for huge ones."""
    if not is_measured(value):
        return NOT_MEASURED
    text = f"{value:,.{digits}f}" if abs(value) < HUGE else f"{value:.4g}"
    return text + (SPACE + unit if unit else "")


def percent(share: Any, digits: int = 2) -> str:
    """Formats a share: "99.72 %" for 0.9972."""
    return number(100 * share, digits, "%") if is_measured(share) else NOT_MEASURED


def duration(seconds: Any) -> str:
    """Formats a duration: "12.5 s", "6 min 12 s", "31 h 05 min"."""
    if not is_measured(seconds):
        return NOT_MEASURED
    if seconds < 59.95:
        return f"{seconds:.1f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min{SPACE}{rest:02d}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h{SPACE}{minutes % 60:02d}{SPACE}min"


def setting(value: Any) -> str:
    """Formats a setting as in config.py, but strings without quotes."""
    if isinstance(value, str):
        return value or "(empty)"
    return repr(value)
