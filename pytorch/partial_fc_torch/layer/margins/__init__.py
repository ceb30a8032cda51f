"""The margins of the layer, one per file; docs/extend.md shows how to add one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import errors_of, make

from .adaface import AdaFace
from .combined import ArcFace, CombinedMarginLoss, CosFace
from .curricularface import CurricularFace
from .function import Function, FunctionMargin
from .inter_topk import InterTopK
from .magface import MagFace
from .margin import Margin, Targets

DEFAULT_SCALE = 64.0  # for functions without an attribute s or scale

# Name in the setting ``margin`` -> class, which is called with s and ``margin_options``.
MARGINS: dict[str, type[Margin]] = {
    "combined": CombinedMarginLoss,
    "adaface": AdaFace,
    "magface": MagFace,
    "curricularface": CurricularFace,
    "inter_topk": InterTopK,
}

__all__ = [
    "AdaFace",
    "ArcFace",
    "CombinedMarginLoss",
    "CosFace",
    "CurricularFace",
    "FunctionMargin",
    "InterTopK",
    "MagFace",
    "Margin",
    "Targets",
    "as_margin",
    "margin_named",
]


def margin_named(name: str, s: float, options: Mapping[str, Any]) -> Any:
    """Builds the margin that the setting ``margin`` names.

    Args:
        name: a key of MARGINS; or ``package.module:name`` of a class, which is called with ``s`` and the options, or of
            a function for FunctionMargin, which gets the options as further arguments.
        s: the scale.
        options: further arguments by name.

    Returns:
        An object that `as_margin` accepts.

    Raises:
        ValueError: The object does not exist, or does not take these options.
    """
    build = find_margin(name)
    if inspect.isclass(build):
        return make("margin", name, build, s=s, **options)
    return FunctionMargin(partial(build, **options) if options else build, s)


def find_margin(name: str) -> Callable[..., Any]:
    """Returns the class or function of a margin, see `margin_named`."""
    margin: Callable[..., Any] = MARGINS.get(name) or import_object(name, "margin", torch.nn.Module, Function)
    return margin


def as_margin(margin: Any, device: torch.device | str | None = None) -> Margin:
    """Converts an object to a Margin.

    Args:
        margin: a Margin; or an object with s, m1, m2 and m3, such as arcface_torch's CombinedMarginLoss, which is
            converted with its slope of 1; or a function for FunctionMargin, whose scale is its attribute ``scale`` or
            ``s``, by default 64.
        device: the result's device.

    Raises:
        TypeError: The object is none of these.
        ValueError: The margin fails in a trial with a batch of two rows.
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
    """Returns whether an object has a signature that accepts three arguments."""
    if not callable(function):
        return False
    try:
        inspect.signature(getattr(function, "forward", function)).bind(None, None, None)
    except (TypeError, ValueError):  # other arguments, or no signature
        return False
    return True


def _try_forward(margin: Margin, device: torch.device | str | None) -> None:
    """Raises ValueError before the first step if a margin cannot compute targets; its state does not change."""
    cosines = torch.tensor([0.5, 0.1], dtype=torch.float64, device=device)
    function = getattr(margin, "function", margin)
    name = getattr(function, "__qualname__", type(function).__name__)
    with errors_of(f"the margin {name} cannot compute the target logits of two rows in a trial"):
        copy.deepcopy(margin).targets(cosines, 40 * cosines, torch.zeros(2, dtype=torch.int64, device=device))
