"""Where the centers are kept: one file each; docs/extend.md adds one."""

from .files import FileStore
from .host import HostStore
from .store import CenterStore, StepCenters

__all__ = ["CenterStore", "FileStore", "HostStore", "StepCenters"]
