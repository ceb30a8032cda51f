"""Formats figures for people."""

from typing import Any

NOT_MEASURED = "not measured"  # how None is shown
GROUPED_BELOW = 1e12
SPACE = "\N{NARROW NO-BREAK SPACE}"  # between a number and its unit


def number(value: float | None, digits: int = 0) -> str:
    """Formats a number: "1,604.6"; "1e+30" for huge ones."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.{digits}f}" if abs(value) < GROUPED_BELOW else f"{value:.4g}"


def percent(share: float | None, digits: int = 2) -> str:
    """Formats a share: "99.72 %" for 0.9972."""
    return NOT_MEASURED if share is None else f"{number(100 * share, digits)}{SPACE}%"


def duration(seconds: float) -> str:
    """Formats a duration: "12.5 s", "6 min 12 s", "31 h 05 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min{SPACE}{rest:02d}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h{SPACE}{minutes % 60:02d}{SPACE}min"


def setting(value: Any) -> str:
    """Formats a setting as in config.py, but strings without quotes."""
    return (value or "(empty)") if isinstance(value, str) else repr(value)
