"""A checkpoint that another program has written, as the framework reads it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import Manifest, SavedClasses


class ForeignCheckpoint(NamedTuple):
    """What a training continues with.

    Attributes:
        manifest: of its sizes and its state, with no files. A position in the data without the keys of the order of the
            images is one in this training's order.
        backbone: (rank, number of ranks) of this training -> arrays, as partial_fc.checkpoint.backbone reads them.
        classes: centers and the states of their optimizer.
        messages: to log; what it does not have.
    """

    manifest: Manifest
    backbone: Callable[[int, int], dict[str, np.ndarray]]
    classes: SavedClasses
    messages: list[str]


# See Framework.read_checkpoint.
ReadForeign = Callable[[str, int], ForeignCheckpoint | None]
