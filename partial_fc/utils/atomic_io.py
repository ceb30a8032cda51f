"""Single files written to disk completely or not at all; utils/staging.py writes groups of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

# Bytes between two fsync calls: a single one at the end of a large file would block for long without calling `alive`.
SYNC_INTERVAL = 256 << 20
PART = 4 << 20  # bytes of one write, between two calls of `alive`

Chunk = bytes | memoryview


class Entry(NamedTuple):
    """The content of a file: its size, and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


class FileWriter:
    """An open file for programs that write their content themselves, such as ``torch.save``.

    Args:
        descriptor: of the file.
        alive: called every few MB, to report that the process is making progress.
    """

    def __init__(self, descriptor: int, alive: Callable[[], None]):
        self._descriptor, self._alive = descriptor, alive
        self._digest, self._size, self._unsynced = hashlib.sha256(), 0, 0

    def write(self, data: Chunk) -> int:
        """Writes all of ``data``, C-contiguous and of any size; returns its number of bytes."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else view
        for start in range(0, view.nbytes, PART):
            part = view[start : start + PART]
            self._alive()
            self._digest.update(part)
            self._size, self._unsynced = self._size + len(part), self._unsynced + len(part)
            while len(part):  # a full disk takes the first bytes, and reports an error at the next call
                part = part[os.write(self._descriptor, part) :]
            if self._unsynced >= SYNC_INTERVAL:
                self._sync()
        return view.nbytes

    def writelines(self, chunks: Iterable[Chunk]) -> None:
        """Writes all chunks."""
        for chunk in chunks:
            self.write(chunk)

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def finish(self) -> Entry:
        """Waits until the content is on the disk; returns its size and SHA-256."""
        self._sync()
        return Entry(self._size, self._digest.hexdigest())

    def _sync(self) -> None:
        os.fsync(self._descriptor)  # a full disk may be reported only here
        self._unsynced = 0


def write_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """Writes a file and waits until it is on the disk; returns size and SHA-256 of what was written.

    Args:
        path: is overwritten; after an error the incomplete file stays.
        chunks: the content, C-contiguous buffers of any size.
        alive: see FileWriter.

    Raises:
        OSError: the file could not be written completely; names the path and the reason.
    """
    return _write(path, lambda file: file.writelines(chunks), alive)


def replace_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """As write_file, but an older file at `path` stays until the new one is complete and on the disk."""
    return replace_file_by(path, lambda file: file.writelines(chunks), alive)


def replace_file_by(path: str, write: Callable[[FileWriter], object], alive: Callable[[], None]) -> Entry:
    """As replace_file, but ``write(file)`` writes the content."""
    with replacing(path) as temporary:
        entry = _write(temporary, write, alive)
    sync_folder(os.path.dirname(path) or ".")
    return entry


def _write(path: str, write: Callable[[FileWriter], object], alive: Callable[[], None]) -> Entry:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            file = FileWriter(descriptor, alive)
            write(file)
            return file.finish()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path to write to. The file is renamed to `path` at the end, or removed after an exception."""
    temporary = path + ".writing"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def sync_folder(path: str) -> None:
    """Waits until the directory entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
