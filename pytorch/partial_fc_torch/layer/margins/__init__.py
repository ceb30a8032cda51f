"""The margins of the layer: one file each; docs/extend.md adds one."""

from __future__ import annotations

import inspect
from typing import Any

from .combined import ArcFace, CombinedMarginLoss, CosFace
from .function import FunctionMargin
from .margin import Margin, Targets

DEFAULT_SCALE = 64.0  # of a function that has no attribute s or scale

__all__ = ["ArcFace", "CombinedMarginLoss", "CosFace", "FunctionMargin", "Margin", "Targets", "as_margin"]


def as_margin(margin: Any) -> Margin:
    """Returns an object as a Margin.

    Args:
        margin: a Margin; or an object with s, m1, m2 and m3, as arcface_torch's CombinedMarginLoss, whose slope of 1 is
            taken over; or a function for FunctionMargin, with its ``scale`` or ``s``, otherwise 64.

    Raises:
        TypeError: it is none of them.
    """
    if isinstance(margin, Margin):
        return margin
    if all(hasattr(margin, name) for name in ("s", "m1", "m2", "m3")):
        threshold = getattr(margin, "interclass_filtering_threshold", 0)
        return CombinedMarginLoss(margin.s, margin.m1, margin.m2, margin.m3, threshold, straight_through=True)
    if _takes_three(margin):
        scale = getattr(margin, "scale", getattr(margin, "s", DEFAULT_SCALE))
        return FunctionMargin(margin, float(scale))
    raise TypeError(
        f"the margin loss is of type {type(margin).__name__}, expected a Margin such as ArcFace(), an object with s, "
        "m1, m2 and m3, or a function (cosine, norms, labels) -> target logits"
    )


def _takes_three(function: Any) -> bool:
    """Whether it can be called with three arguments, as far as Python knows its signature."""
    if not callable(function):
        return False
    try:
        inspect.signature(getattr(function, "forward", function)).bind(None, None, None)
    except (TypeError, ValueError):  # other arguments, or no signature
        return False
    return True
