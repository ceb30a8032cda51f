"""Shared by the generators of synthetic sets: drawing in several processes, and a folder that is written once.

The generators are dataset.py (faces), examples/glyphs (characters), and partial_fc_tools/ijb/synthetic.py, which uses
draw_all only.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder

CHUNK = 32  # images per task of a process: about a tenth of a second
Task = TypeVar("Task")
Image = TypeVar("Image")


def draw_all(draw: Callable[[Task], Image], tasks: Sequence[Task], workers: int) -> Iterator[Image]:
    """Yields `draw(task)` of all tasks in their order, computed by `workers` processes; see ordered_map."""
    with progress(len(tasks), "image", "drawing") as bar:
        for _, images in ordered_map(partial(_draw_chunk, draw), in_chunks(tasks, CHUNK), workers):
            bar.update(len(images))
            yield from images


def _draw_chunk(draw: Callable[[Task], Image], tasks: list[Task]) -> list[Image]:
    return [draw(task) for task in tasks]


class SyntheticSet(NamedTuple):
    """A set in a folder."""

    root: Path  # the folder
    meta: str  # name of the JSON file with the parameters
    parameters: dict[str, Any]  # determine the content; JSON
    files: tuple[str, ...]  # names of the files of a complete set

    def is_current(self) -> bool:
        """Whether the folder contains a complete set with these parameters."""
        try:
            same = json.loads((self.root / self.meta).read_text()) == self.parameters
        except (OSError, ValueError):
            return False
        return same and all((self.root / name).is_file() for name in self.files)

    def write(self, write_files: Callable[[Path], object]) -> None:
        """Writes the set with `write_files(folder)`. The complete folder replaces an older set.

        Raises:
            OSError: the set cannot be written, or the folder contains something else.
        """
        replaceable = (self.meta, *self.files) if (self.root / self.meta).exists() else ()  # of an earlier version
        try:
            with staged_folder(self.root, force=True, own=replaceable) as stage:
                write_files(Path(stage))
                (Path(stage) / self.meta).write_text(json.dumps(self.parameters, indent=1) + "\n")
        except OSError:
            if not self.is_current():  # otherwise, another process has written the same set in the meantime
                raise
