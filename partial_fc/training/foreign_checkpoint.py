"""A checkpoint that another program has written, as the framework reads it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint import Manifest, SavedClasses


class ForeignCheckpoint(NamedTuple):
    """What a training continues with."""

    # of its sizes and its state, with no files. A position in the data without the keys of the order of the images is
    # one in this training's order.
    manifest: Manifest
    # (rank, number of ranks) of this training -> arrays, as partial_fc.checkpoint.backbone reads them
    backbone: Callable[[int, int], dict[str, np.ndarray]]
    classes: SavedClasses  # centers and the states of their optimizer
    messages: list[str]  # to log; what it does not have


# See Framework.read_checkpoint.
ReadForeign = Callable[[str, int], ForeignCheckpoint | None]
