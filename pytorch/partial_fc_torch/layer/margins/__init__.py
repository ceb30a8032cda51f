"""The margins of the layer: one file each; docs/extend.md adds one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import errors_of

from .adaface import AdaFace
from .combined import ArcFace, CombinedMarginLoss, CosFace
from .curricularface import CurricularFace
from .function import Function, FunctionMargin
from .magface import MagFace
from .margin import Margin, Targets

DEFAULT_SCALE = 64.0  # of a function that has no attribute s or scale

# Name in the setting ``margin`` -> what makes it, with s and the options of the setting ``margin_options``.
MARGINS: dict[str, type[Margin]] = {
    "combined": CombinedMarginLoss,
    "adaface": AdaFace,
    "magface": MagFace,
    "curricularface": CurricularFace,
}

__all__ = [
    "AdaFace",
    "ArcFace",
    "CombinedMarginLoss",
    "CosFace",
    "CurricularFace",
    "FunctionMargin",
    "MagFace",
    "Margin",
    "Targets",
    "as_margin",
    "margin_named",
]


def margin_named(name: str, s: float, options: Mapping[str, Any]) -> Any:
    """Makes the margin that the setting ``margin`` names.

    Args:
        name: of MARGINS, or ``package.module:name`` of a class, which is called with ``s`` and the options, or of a
            function for FunctionMargin, which gets the options as further arguments.
        s: the scale.
        options: further arguments by name.

    Returns:
        What `as_margin` accepts.

    Raises:
        ValueError: there is no such object, or it does not take these options.
    """
    made = find_margin(name)
    with errors_of(f"margin is {name!r}, but cannot be made with s={s} and {dict(options)}"):
        if inspect.isclass(made):
            return made(s=s, **options)
        return FunctionMargin(partial(made, **options) if options else made, s)


def find_margin(name: str) -> Callable[..., Any]:
    """Returns the class or function of a margin; for the argument and errors see `margin_named`."""
    found: Callable[..., Any] = MARGINS.get(name) or import_object(name, "margin", torch.nn.Module, Function)
    return found


def as_margin(margin: Any, device: torch.device | str | None = None) -> Margin:
    """Returns an object as a Margin.

    Args:
        margin: a Margin; or an object with s, m1, m2 and m3, as arcface_torch's CombinedMarginLoss, whose slope of 1 is
            taken over; or a function for FunctionMargin, with its ``scale`` or ``s``, otherwise 64.
        device: to which a Margin, and a function that is a module, is moved.

    Raises:
        TypeError: it is none of them.
        ValueError: it cannot compute the targets of a batch of two rows, which is tried.
    """
    if not isinstance(margin, Margin):
        if all(hasattr(margin, name) for name in ("s", "m1", "m2", "m3")):
            threshold = getattr(margin, "interclass_filtering_threshold", 0)
            return CombinedMarginLoss(margin.s, margin.m1, margin.m2, margin.m3, threshold, straight_through=True)
        if not _takes_three(margin):
            raise TypeError(
                f"the margin loss is of type {type(margin).__name__}, expected a Margin such as ArcFace(), an object "
                "with s, m1, m2 and m3, or a function (cosine, norms, labels) -> target logits"
            )
        margin = FunctionMargin(margin, float(getattr(margin, "scale", getattr(margin, "s", DEFAULT_SCALE))))
    margin = margin.to(device)
    _try_forward(margin, device)
    return margin


def _takes_three(function: Any) -> bool:
    """Whether it can be called with three arguments, as far as Python knows its signature."""
    if not callable(function):
        return False
    try:
        inspect.signature(getattr(function, "forward", function)).bind(None, None, None)
    except (TypeError, ValueError):  # other arguments, or no signature
        return False
    return True


def _try_forward(margin: Margin, device: torch.device | str | None) -> None:
    """Raises ValueError, now and not in the first step, if a margin cannot compute targets; its state stays."""
    numbers = torch.tensor([0.5, 0.1], dtype=torch.float64, device=device)
    named = getattr(margin, "function", margin)
    shown = getattr(named, "__qualname__", type(named).__name__)
    with errors_of(f"the margin {shown} cannot compute the target logits of two rows in a trial"):
        copy.deepcopy(margin).targets(numbers, 40 * numbers, torch.zeros(2, dtype=torch.int64, device=device))
