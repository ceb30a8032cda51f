"""Heads: classification layers over one backbone, each with its own training set; see partial_fc.settings.heads."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Head(NamedTuple):
    """A head; a training without the setting ``heads`` is one head without a name."""

    name: str
    settings: Any  # all settings of a training of this head alone
    weight: float = 1.0  # factor of the gradient that the backbone gets from this head
    own: Mapping[str, Any] = {}  # what the file of the heads says about it, without name and weight; paths are absolute
