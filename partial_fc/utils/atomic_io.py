"""Files that are on the disk when the function returns, with what was meant to be in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

# Bytes that the disk may be behind: one wait for all of a large file would be a long one without a sign of life.
UNWRITTEN = 256 << 20
PART = 4 << 20  # bytes given to the disk at once, between two signs of life

Chunk = bytes | memoryview


class Entry(NamedTuple):
    """What is in a file: its size, and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


def write_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """Writes a file and waits until the disk has it.

    Args:
        path: is written over; after an error the half file stays.
        chunks: C-contiguous, of any size.
        alive: called every few MB.

    Raises:
        OSError: it could not be written to the last byte, with the path and the reason.
    """
    digest, size, unwritten = hashlib.sha256(), 0, 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for part in _parts(chunks):
                alive()
                digest.update(part)
                size, unwritten = size + len(part), unwritten + len(part)
                _write(descriptor, part)
                if unwritten >= UNWRITTEN:
                    os.fsync(descriptor)
                    unwritten = 0
            # Here, at the latest, is told what the disk had no room for.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    return Entry(size, digest.hexdigest())


def replace_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """As write_file, but writes aside and gives the file its name when it is on the disk.

    Raises:
        OSError: likewise; the file that had the name before still has it.
    """
    aside = path + ".writing"
    try:
        entry = write_file(aside, chunks, alive)
        os.replace(aside, path)
    except BaseException:  # what makes the chunks may refuse too
        with suppress(OSError):
            os.remove(aside)
        raise
    sync_folder(os.path.dirname(path) or ".")
    return entry


def sync_folder(path: str) -> None:
    """Waits until the names in a folder are on the disk."""
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
    while len(part):  # a full disk takes the beginning and says so at the next call
        part = part[os.write(descriptor, part) :]
