"""Writes single files completely or not at all; utils/staging.py writes groups of files."""

import fcntl
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple

# Bytes between two calls of fsync. A single call at the end of a large file would report no progress for too long.
SYNC_INTERVAL = 256 << 20
PART = 4 << 20  # bytes per write; `report_progress` is called before each

Chunk = bytes | memoryview


class Entry(NamedTuple):
    """Size and SHA-256 (hexadecimal) of a file."""

    bytes: int
    sha256: str


class FileWriter:
    """An unbuffered file for functions that write to a file object, such as ``torch.save``.

    Args:
        descriptor: an open file descriptor.
        report_progress: called every few MB.
    """

    def __init__(self, descriptor: int, report_progress: Callable[[], None]):
        self._descriptor, self._report_progress = descriptor, report_progress
        self._digest, self._size, self._unsynced = hashlib.sha256(), 0, 0

    def write(self, data: Chunk) -> int:
        """Writes all of a C-contiguous buffer; returns its number of bytes."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else view
        for start in range(0, view.nbytes, PART):
            part = view[start : start + PART]
            self._report_progress()
            self._digest.update(part)
            self._size, self._unsynced = self._size + len(part), self._unsynced + len(part)
            while len(part):  # a full disk accepts the first bytes, and the next call raises the error
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
        """Waits until the content is on disk; returns its size and SHA-256."""
        self._sync()
        return Entry(self._size, self._digest.hexdigest())

    def _sync(self) -> None:
        os.fsync(self._descriptor)  # some file systems report a full disk only here
        self._unsynced = 0


def write_file(path: str, chunks: Iterable[Chunk], report_progress: Callable[[], None] = lambda: None) -> Entry:
    """Writes a file and waits until it is on disk.

    Args:
        path: file to overwrite, which must not be a symbolic link. After an error the incomplete file remains.
        chunks: the content, as C-contiguous buffers.
        report_progress: see FileWriter.

    Returns:
        The size and SHA-256 of the content.

    Raises:
        OSError: the file could not be written completely; the message names the path and the reason.
    """
    with named_in_errors(path), open(path, "wb", opener=no_follow) as file:
        writer = FileWriter(file.fileno(), report_progress)
        writer.writelines(chunks)
        return writer.finish()


def replace_file(path: str, chunks: Iterable[Chunk], report_progress: Callable[[], None] = lambda: None) -> Entry:
    """Like write_file, but keeps an existing file until the new one is complete and on disk."""
    return replace_file_by(path, lambda writer: writer.writelines(chunks), report_progress)


def replace_file_by(path: str, write: Callable[[FileWriter], object], report_progress: Callable[[], None]) -> Entry:
    """Like replace_file, but ``write(writer)`` writes the content."""
    with named_in_errors(path):
        with replacing(path) as file:
            writer = FileWriter(file.fileno(), report_progress)
            write(writer)
            entry = writer.finish()
        sync_folder(os.path.dirname(path) or ".")
    return entry


@contextmanager
def named_in_errors(path: str) -> Iterator[None]:
    """Adds the path to the message of an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Yields a temporary file that is renamed to `path` at the end, or removed after an exception.

    Its random name keeps another user of the folder from placing a link there in advance. Temporary files of killed
    processes are removed: nobody holds the lock of such a file.
    """
    for leftover in glob.glob(f"{glob.escape(path)}.{'[0-9a-f]' * 8}.writing"):
        with suppress(OSError), open(leftover, "r+b", opener=no_follow) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.remove(leftover)
    temporary = f"{path}.{secrets.token_hex(4)}.writing"
    try:
        with open(temporary, "xb", opener=no_follow) as file:
            with suppress(OSError):  # not all file systems have locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def no_follow(path: str, flags: int) -> int:
    """An opener for open() that does not follow symbolic links or block on named pipes, which may be hostile."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def new_file(path: str) -> BinaryIO:
    """Creates and opens a file. Fails if the path exists: another user of the folder may have placed it there."""
    return open(path, "xb+", opener=no_follow)


def sync_folder(path: str) -> None:
    """Waits until the directory entries of a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
