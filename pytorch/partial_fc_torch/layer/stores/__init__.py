"""Stores of the centers, one per file; docs/extend.md shows how to add one."""

from .files import FileStore
from .host import HostStore
from .store import CenterStore

__all__ = ["CenterStore", "FileStore", "HostStore"]
