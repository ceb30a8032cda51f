"""The objectives of the layer, one per file; docs/extend.md shows how to add one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import errors_of, make

from .bce import BCE
from .circle import Circle
from .mlcd import MLCD
from .objective import FunctionObjective, LogSumExp, Losses, Objective
from .one_versus_all import OneVersusAll, SoftplusSum
from .softmax import Softmax
from .softmax_shared import SharedSoftmax
from .sphereface2 import SphereFace2
from .uniface import UniFace

# Name in the setting ``objective`` -> class, which is called with ``objective_options``; a OneVersusAll also with scale
# and C.
OBJECTIVES: dict[str, type[Objective]] = {
    "softmax": Softmax,
    "softmax_shared": SharedSoftmax,
    "mlcd": MLCD,
    "circle": Circle,
    "sphereface2": SphereFace2,
    "uniface": UniFace,
    "bce": BCE,
}

__all__ = ["OBJECTIVES", "Losses", "LogSumExp", "Objective", "OneVersusAll", "SoftplusSum", "as_objective"]


def find_objective(name: str) -> Callable[..., Any]:
    """Returns the class or function that a name in OBJECTIVES, or ``package.module:name``, stands for."""
    found: Callable[..., Any] = OBJECTIVES.get(name) or import_object(name, "objective", Objective)
    return found


def as_objective(
    objective: str | Objective | Callable[..., torch.Tensor],
    scale: float,
    num_classes: int,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> Objective:
    """Returns an Objective.

    Args:
        objective: a name in OBJECTIVES; an Objective; a function (negatives, targets, cosines, present) -> losses, see
            Objective.forward; or ``package.module:name`` of a subclass of Objective or of such a function.
        scale, num_classes: s and C, for losses of one class against all others.
        options: arguments of a class or function given by name.
        device: the result's device.

    Raises:
        ValueError: The object does not exist, does not take these options, or fails in a trial with two rows.
    """
    options = dict(options or {})
    found: Any = objective
    if isinstance(objective, str):
        found = find_objective(objective)
        if inspect.isclass(found):
            sizes = {"scale": scale, "num_classes": num_classes} if issubclass(found, OneVersusAll) else {}
            found = make("objective", objective, found, **sizes, **options)
        elif options:
            found = partial(found, **options)
    module: Objective = found if isinstance(found, Objective) else FunctionObjective(found)
    _try(module)
    return module.to(device)


def _try(objective: Objective) -> None:
    """Raises ValueError before the first step if an objective cannot compute losses."""
    device = next((each.device for each in objective.state_dict().values()), "cpu")
    function = getattr(objective, "function", objective)
    name = getattr(function, "__qualname__", type(function).__name__)
    rows = torch.tensor([[0.5], [-0.5]], dtype=torch.float64, device=device)
    with errors_of(f"the objective {name} cannot compute the losses of two rows in a trial"):
        losses = copy.deepcopy(objective).losses(torch.ones_like(rows.t()).expand(2, 2), rows, rows, rows < 1)
        if not (losses.by_negatives >= 0).all():
            raise ValueError("the loss decreases with the negatives")
