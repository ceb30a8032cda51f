"""Single files written to disk completely or not at all; utils/staging.py writes groups of files."""

import fcntl
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple

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
        path: is overwritten, but not through a symbolic link; after an error the incomplete file stays.
        chunks: the content, C-contiguous buffers of any size.
        alive: see FileWriter.

    Raises:
        OSError: the file could not be written completely; names the path and the reason.
    """
    with named_in_errors(path), open(path, "wb", opener=no_follow) as file:
        return _write(file, lambda file: file.writelines(chunks), alive)


def replace_file(path: str, chunks: Iterable[Chunk], alive: Callable[[], None] = lambda: None) -> Entry:
    """As write_file, but an older file at `path` stays until the new one is complete and on the disk."""
    return replace_file_by(path, lambda file: file.writelines(chunks), alive)


def replace_file_by(path: str, write: Callable[[FileWriter], object], alive: Callable[[], None]) -> Entry:
    """As replace_file, but ``write(file)`` writes the content."""
    with named_in_errors(path):
        with replacing(path) as file:
            entry = _write(file, write, alive)
        sync_folder(os.path.dirname(path) or ".")
    return entry


def _write(file: BinaryIO, write: Callable[[FileWriter], object], alive: Callable[[], None]) -> Entry:
    writer = FileWriter(file.fileno(), alive)
    write(writer)
    return writer.finish()


@contextmanager
def named_in_errors(path: str) -> Iterator[None]:
    """Adds the path to errors of the disk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Yields a new file to write to, which is renamed to `path` at the end, or removed after an exception.

    Its name is drawn, so that another user of the folder cannot have made a link of that name. Earlier ones whose
    process was killed are removed: their lock is free.
    """
    for left in glob.glob(f"{glob.escape(path)}.{'[0-9a-f]' * 8}.writing"):
        with suppress(OSError), open(left, "r+b", opener=no_follow) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.remove(left)
    temporary = f"{path}.{secrets.token_hex(4)}.writing"
    try:
        with open(temporary, "xb", opener=no_follow) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def no_follow(path: str, flags: int) -> int:
    """An opener for open(): neither follows a symbolic link nor waits at a named pipe, which others may have made."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def new_file(path: str) -> BinaryIO:
    """Opens a file that must not exist, so that it is none, and no link, that another user of the folder has made."""
    return open(path, "xb+", opener=no_follow)


def sync_folder(path: str) -> None:
    """Waits until the directory entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
