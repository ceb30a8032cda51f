"""Opens files that untrusted data names: regular files only, of bounded size, inside the folder of the data."""

import errno
import io
import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import BinaryIO

LARGEST_IMAGE = 1 << 28  # bytes of an encoded image
# If set, images may be read through links that leave the folder. An environment variable, so that workers inherit it.
FOLLOW_LINKS = "PARTIAL_FC_FOLLOW_LINKS"
PIPES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # `<(command)` of bash, and standard input
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OutsideError(PermissionError):
    """A path leads out of the folder that should contain it."""


def open_regular(path: str | os.PathLike, root: str | os.PathLike | None = None) -> BinaryIO:
    """Opens a regular file for reading, unbuffered. Does not block on named pipes or open devices.

    Args:
        path: path of the file; links are followed.
        root: folder that must contain the file after all links are resolved; None for any folder.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
        OutsideError: the file is outside of `root`.
    """
    return open(_open(path, root)[0], "rb", buffering=0)


def require_regular(path: str | os.PathLike) -> None:
    """Raises OSError unless `path` is a regular file, for libraries that open a path and would block on a pipe."""
    open_regular(path).close()


def open_text(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a text file for reading, or a pipe of the shell such as ``/dev/fd/63``.

    Raises:
        OSError: see open_regular.
        ValueError: the file has a hole: its line of zeros may be a terabyte long and take only 4 KB on disk.
    """
    if os.fspath(path).startswith(PIPES) and ".." not in os.fspath(path):
        return open(path, "rb")
    file = open_regular(path)
    with suppress(OSError):  # the file is empty, or the file system has no holes
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        if hole < os.fstat(file.fileno()).st_size:
            file.close()
            raise ValueError(f"{os.fspath(path)} is not text: it has only zeros from byte {hole} on")
    file.seek(0)
    return io.BufferedReader(file)  # type: ignore[arg-type]


def _open(path: str | os.PathLike, root: str | os.PathLike | None) -> tuple[int, int]:
    """Returns the descriptor and the size of a regular file."""
    # O_PATH has no side effects on devices and pipes, and refers to the same file even if names and links change.
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status, name = os.fstat(handle), f"/proc/self/fd/{handle}"
        if root is not None:
            realpath = _cached_realpath if os.path.isabs(root) else os.path.realpath
            if not _is_below(os.readlink(name), realpath(os.fspath(root))):
                raise _outside(path, root)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        try:
            return os.open(name, FLAGS), status.st_size
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        os.close(handle)


_cached_realpath = lru_cache(1 << 10)(os.path.realpath)  # for folders of many files


def _is_below(path: str, folder: str) -> bool:
    """Returns whether a resolved path is a resolved folder or inside of it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _outside(path: str | os.PathLike, root: str | os.PathLike) -> OutsideError:
    return OutsideError(errno.EACCES, f"it is outside of {os.fspath(root)}", os.fspath(path))


def read_image_file(path: str | os.PathLike, root: str | os.PathLike) -> bytes:
    """Returns an encoded image of a set in the folder ``root``; see open_regular.

    Raises:
        OSError: see read_regular. If the image is outside of ``root``, the message names the option that allows it.
    """
    if FOLLOW_LINKS in os.environ:
        return read_regular(path, LARGEST_IMAGE)
    try:
        return read_regular(path, LARGEST_IMAGE, root)
    except OutsideError as error:
        raise advised(error) from None


def advised(error: OutsideError) -> OutsideError:
    """Returns the error with the option that allows links out of the folder."""
    advice = f"{error.strerror}: to read images there, too, use --follow-links (in a training follow_links=True)"
    return OutsideError(error.errno, advice, error.filename)


def require_links_inside(paths: list[str], root: str | os.PathLike) -> None:
    """Raises OutsideError if a path leads out of the folder ``root``, unless the user follows links."""
    for path in paths:
        if FOLLOW_LINKS not in os.environ and not _is_below(os.path.realpath(path), os.path.realpath(root)):
            raise advised(_outside(path, root))


def read_regular(path: str | os.PathLike, largest: int, root: str | os.PathLike | None = None) -> bytes:
    """Returns the content of a regular file of at most ``largest`` bytes; see open_regular.

    Raises:
        OSError: see open_regular; or the file is larger.
    """
    descriptor, size = _open(path, root)
    try:
        parts, left = [], largest + 1 if size <= largest else 0
        # Files of /proc have size 0. Reading one byte more than the size detects the end of other files at once.
        while left and (part := os.read(descriptor, min(left, max(size + 1, 1 << 12)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if not left:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", os.fspath(path))
    return b"".join(parts)
