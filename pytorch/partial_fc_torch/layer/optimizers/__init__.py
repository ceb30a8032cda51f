"""The optimizers of the centers: one file each; docs/extend.md adds one."""

from .adagrad import Adagrad
from .adamw import AdamW
from .optimizer import RowOptimizer
from .sgd import SGD

__all__ = ["SGD", "Adagrad", "AdamW", "RowOptimizer"]
