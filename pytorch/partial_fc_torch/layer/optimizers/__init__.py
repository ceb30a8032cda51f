"""The optimizers of the centers, one per file; docs/extend.md shows how to add one."""

from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import make

from .adagrad import Adagrad
from .adamw import AdamW
from .optimizer import RowOptimizer, RowUpdate
from .sgd import SGD

OPTIMIZERS = {"sgd": SGD, "adamw": AdamW, "adagrad": Adagrad}

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "AdamW", "RowOptimizer", "RowUpdate", "optimizer_named"]


def optimizer_named(name: str, weight_decay: float, **sgd_options) -> RowOptimizer:
    """Builds an optimizer of the centers.

    Args:
        name: a key of OPTIMIZERS, or ``package.module:name`` of a class or function that returns a RowOptimizer when it
            is called with ``weight_decay``.
        weight_decay: the optimizer's ``weight_decay``.
        sgd_options: arguments that only SGD takes; ignored for other optimizers.

    Raises:
        ValueError: The optimizer does not exist, or is not a RowOptimizer.
    """
    if name == "sgd":
        return SGD(weight_decay=weight_decay, **sgd_options)
    build = OPTIMIZERS.get(name) or import_object(name, "center_optimizer", RowOptimizer)
    optimizer = make("center_optimizer", name, build, weight_decay=weight_decay)
    if not isinstance(optimizer, RowOptimizer):
        raise ValueError(
            f"center_optimizer is {name!r}, which makes a {type(optimizer).__name__}: it must make a RowOptimizer of "
            "partial_fc_torch.layer.optimizers"
        )
    return optimizer
