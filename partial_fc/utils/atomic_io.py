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


def write_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """Writes a file and waits until it is on the disk.

    Args:
        path: is overwritten; after an error the incomplete file stays.
        chunks: the content, C-contiguous buffers of any size.
        alive: called every few MB, to report that the process is making progress.

    Returns:
        Size and SHA-256 of what was written.

    Raises:
        OSError: the file could not be written completely; names the path and the reason.
    """
    digest, size, unsynced = hashlib.sha256(), 0, 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for part in _parts(chunks):
                alive()
                digest.update(part)
                size, unsynced = size + len(part), unsynced + len(part)
                _write(descriptor, part)
                if unsynced >= SYNC_INTERVAL:
                    os.fsync(descriptor)
                    unsynced = 0
            os.fsync(descriptor)  # a full disk may be reported only here
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    return Entry(size, digest.hexdigest())


def replace_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """As write_file, but the file appears at `path` only when it is complete and on the disk.

    Raises:
        OSError: as write_file; an older file at `path` is unchanged.
    """
    with replacing(path) as temporary:
        entry = write_file(temporary, chunks, alive)
    sync_folder(os.path.dirname(path) or ".")
    return entry


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


def _parts(chunks: Iterable[Chunk]) -> Iterable[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        if view.nbytes:
            view = view.cast("B")
        for start in range(0, view.nbytes, PART):
            yield view[start : start + PART]


def _write(descriptor: int, part: memoryview) -> None:
    while len(part):  # a full disk takes the first bytes, and reports an error at the next call
        part = part[os.write(descriptor, part) :]
