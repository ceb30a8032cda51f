"""The items that the commands embed: face images in files, or items that a user's function makes from texts.

Shapes: N items, H, W input size of the model.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from partial_fc.data.batch import Inputs
from partial_fc.utils.imports import import_object
from partial_fc.utils.text import read_lines
from partial_fc.utils.user_code import errors_of

from .image_folder import face_names, read_face, read_faces

Item = np.ndarray | dict[str, np.ndarray]  # Inputs without the first axis
Read = tuple[list[str], Inputs, list[str]]  # names and inputs of the N usable items, messages about skipped ones


class Maker(Protocol):
    """Makes items from texts, see `Texts`: a function, or an object of a user's class."""

    def __call__(self, text: str) -> Item:
        """Returns the item for a text."""
        ...


class Images:
    """Images in files, inputs (N, H, W, 3) uint8 RGB.

    Args:
        size: (H, W).
        scale: scale images of another size instead of refusing them.
    """

    noun = "image"

    def __init__(self, size: tuple[int, int], scale: bool):
        self.size, self.scale = size, scale

    def names(self, path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the images in a folder, and of the other files, see `face_names`."""
        return face_names(path)

    def describe(self, path: str | os.PathLike, name: str) -> str:
        """Returns an image's path, for messages."""
        return os.path.join(path, name)

    def read(self, path: str | os.PathLike, names: Sequence[str]) -> Read:
        """Reads images of a folder, see `read_faces`."""
        return read_faces(path, names, self.size, self.scale)

    def read_one(self, path: str) -> Inputs:
        """Reads one file, see `read_face`; N is 1."""
        return read_face(path, self.size, self.scale)[None]


class Texts:
    """Items that a function makes from texts: from words or sentences, or from paths of any files.

    Args:
        make: text -> an array, or a dictionary of arrays, without the axis of the items; raises an error for a text
            that has no item.
    """

    noun = "item"

    def __init__(self, make: Callable[[str], Item]):
        self.make = make

    @classmethod
    def of(cls, name: str) -> "Texts":
        """Imports the function ``package.module:function``. Raises ValueError if it does not exist."""
        return cls(import_object(name, "--reader", Maker))

    def names(self, path: str) -> tuple[list[str], list[str]]:
        """Returns the lines of a text file that are not empty, and no other files.

        Raises:
            OSError: The file cannot be read.
            ValueError: It holds no text, or a line is not UTF-8.
        """
        lines = [line for line in read_lines(path) if line]  # an index has a name per line
        if not lines:
            raise ValueError(f"{path} holds no lines: give a text file with one item per line")
        return lines, []

    def describe(self, path: str | os.PathLike, name: str) -> str:
        """Returns the file and a line of it, for messages."""
        return f"{os.fspath(path)}: {name}"

    def read(self, path: str | os.PathLike, names: Sequence[str]) -> Read:
        """Makes the items for some lines; skips lines that the function refuses."""
        kept, items, skipped = [], [], []
        for name in names:
            try:
                with errors_of(self.describe(path, name)):
                    items.append(self.make(name))
                kept.append(name)
            except ValueError as error:
                skipped.append(str(error))
        return kept, _stacked(items), skipped

    def read_one(self, text: str) -> Inputs:
        """Makes the item for a text; N is 1."""
        with errors_of(text):
            return _stacked([self.make(text)])


def _stacked(items: list[Any]) -> Inputs:
    if items and isinstance(items[0], dict):
        return {name: np.stack([item[name] for item in items]) for name in items[0]}
    return np.stack(items) if items else np.empty(0)
