"""Names of an index's entries: ``<stem>.txt`` has one name per line, ``<stem>.npy`` the offset of each line.

Shapes: N names.
"""

import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.utils.atomic_io import new_file
from partial_fc.utils.regular_files import open_regular

from .ivf import checksum, damaged

ENDINGS = (".txt", ".npy")
ENCODING = ("utf-8", "surrogateescape")  # as in the names of embeddings, which may be any bytes


class Names:
    """N names in memory-mapped files, so that a search reads only the names of its results. An entry's ID is its index.

    Raises:
        OSError: A file is missing.
        ValueError: The files do not belong together.
    """

    def __init__(self, stem: str):
        self._stem = stem
        self.starts = open_array(f"{stem}.npy")  # of the lines, and the end of the last
        size = os.path.getsize(f"{stem}.txt")
        form = self.starts.ndim, self.starts.dtype
        if form != (1, np.int64) or not len(self.starts) or not self.starts[-1] == size > 0:
            raise ValueError(f"{stem}.npy does not belong to {stem}.txt: build the index again")
        with open_regular(f"{stem}.txt") as file:
            self.text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, entry_id: int) -> str:
        if not 0 <= entry_id < len(self):
            raise damaged(self._stem)
        start = self.starts[entry_id]
        line = self.text[start : self.starts[entry_id + 1]]
        if line.find(b"\n") + 1 != max(1, len(line)) or (start and self.text[start - 1 : start] != b"\n"):
            raise damaged(self._stem)
        return line[:-1].decode(*ENCODING)

    def __iter__(self) -> Iterator[str]:
        self.text.seek(0)
        return (line[:-1].decode(*ENCODING) for line in iter(self.text.readline, b""))

    def checksum(self) -> int:
        """Returns the CRC-32 of both files' content."""
        return checksum(np.frombuffer(self.text, np.uint8), self.starts)


def write_names(stem: str, names: Sequence[str], before: Names | None = None) -> None:
    """Writes the two files; the names in ``before`` come first. Raises OSError."""
    lines = [name.encode(*ENCODING) + b"\n" for name in names]
    starts = np.zeros(1, np.int64) if before is None else before.starts
    with new_file(f"{stem}.txt") as file:
        if before is not None:
            file.write(before.text)
        file.writelines(lines)
    ends = starts[-1] + np.cumsum([len(line) for line in lines], dtype=np.int64)
    with new_file(f"{stem}.npy") as file:
        np.save(file, np.concatenate([starts, ends]))
