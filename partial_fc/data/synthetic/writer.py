"""What the makers of synthetic sets share: drawing in several processes, and a folder that is written once.

They differ in what they draw and in the files they write: faces in dataset.py, characters in examples/glyphs. The IJB
protocol of evaluation/ijb/synthetic.py uses the processes only.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder

CHUNK = 32  # images of a task: about a tenth of a second
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
    parameters: dict[str, Any]  # what the content depends on, for JSON
    files: tuple[str, ...]  # names of the files without which the set is incomplete

    def is_current(self) -> bool:
        """Returns whether the folder contains a complete set with these parameters."""
        try:
            same = json.loads((self.root / self.meta).read_text()) == self.parameters
        except (OSError, ValueError):
            return False
        return same and all((self.root / name).is_file() for name in self.files)

    def write(self, write_files: Callable[[Path], object]) -> None:
        """Writes the set with `write_files(folder)`; the folder appears when it is complete, and replaces an older set.

        Raises:
            OSError: the set cannot be written, or the folder contains something else.
        """
        own = (self.meta, *self.files) if (self.root / self.meta).exists() else ()  # a set of an earlier version
        try:
            with staged_folder(self.root, force=True, own=own) as stage:
                write_files(Path(stage))
                (Path(stage) / self.meta).write_text(json.dumps(self.parameters, indent=1) + "\n")
        except OSError:
            if not self.is_current():  # else another process has written the same set meanwhile
                raise
