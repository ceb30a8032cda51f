"""Files named by data that others may have made: regular, of bounded size, inside the folder of the data."""

import errno
import io
import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import BinaryIO

LARGEST_IMAGE = 1 << 28  # bytes of an encoded image
# If set, the images of sets may be reached through any links. A variable, as processes that read for this one have it.
FOLLOW_LINKS = "PARTIAL_FC_FOLLOW_LINKS"
# Of this process: `<(command)` of bash, and standard input.
PIPES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OutsideError(PermissionError):
    """A path leads out of a folder."""


def open_regular(path: str | os.PathLike, root: str | os.PathLike | None = None) -> BinaryIO:
    """Opens a regular file for reading, unbuffered. Waits at no named pipe and reads no device.

    Args:
        path: links are followed.
        root: a folder that holds the file, also after links in both paths are resolved; None for any folder.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
        OutsideError: It is outside of `root`.
    """
    return open(_open(path, root)[0], "rb", buffering=0)


def require_regular(path: str | os.PathLike) -> None:
    """Raises OSError unless a path leads to a regular file: what opens it next would wait at a pipe."""
    open_regular(path).close()


def open_list(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a list for reading: a regular file, or a pipe of the shell that the path names as ``/dev/fd/63``.

    Raises:
        OSError: As open_regular.
        ValueError: It has zeros that take no space on the disk: a line of a terabyte, in a file of 4 KB.
    """
    if os.fspath(path).startswith(PIPES) and ".." not in os.fspath(path):
        return open(path, "rb")
    file = open_regular(path)
    with suppress(OSError):  # an empty file, or a file system without holes
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        if hole < os.fstat(file.fileno()).st_size:
            file.close()
            raise ValueError(f"{os.fspath(path)} is no text: it has nothing but zeros from byte {hole} on")
    file.seek(0)
    return io.BufferedReader(file)  # type: ignore[arg-type]


def _open(path: str | os.PathLike, root: str | os.PathLike | None) -> tuple[int, int]:
    """Returns the descriptor of a regular file, and its bytes."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opens no device; from here on no name and no link can change
    try:
        status, name = os.fstat(place), f"/proc/self/fd/{place}"
        if root is not None and not _is_below(os.readlink(name), _resolved(os.fspath(root))):
            raise _outside(path, root)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
        try:
            return os.open(name, FLAGS), status.st_size
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        os.close(place)


def require_inside(path: str | os.PathLike, root: str | os.PathLike) -> None:
    """Raises OutsideError unless what a path leads to is inside of a folder, after links in both are resolved."""
    if not _is_below(os.path.realpath(path), os.path.realpath(root)):
        raise _outside(path, root)


def _resolved(root: str) -> str:
    return _realpath(root) if os.path.isabs(root) else os.path.realpath(root)


_realpath = lru_cache(1 << 10)(os.path.realpath)  # once for the many files of a folder


def _is_below(path: str, folder: str) -> bool:
    """Whether a resolved path is that of a folder or of what is in it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _outside(path: str | os.PathLike, root: str | os.PathLike) -> OutsideError:
    return OutsideError(errno.EACCES, f"it is outside of {os.fspath(root)}", os.fspath(path))


def read_image_file(path: str | os.PathLike, root: str | os.PathLike) -> bytes:
    """Returns an encoded image that a set in the folder ``root`` contains or names; see open_regular.

    Raises:
        OSError: As read_regular; what says that it is outside of ``root`` names the option that allows it.
    """
    if FOLLOW_LINKS in os.environ:
        return read_regular(path, LARGEST_IMAGE)
    try:
        return read_regular(path, LARGEST_IMAGE, root)
    except OutsideError as error:
        raise advised(error) from None


def advised(error: OutsideError) -> OutsideError:
    """Returns the error with the option that allows it."""
    advice = f"{error.strerror}: if all its images may be read, use --follow-links (of a training follow_links=True)"
    return OutsideError(error.errno, advice, error.filename)


def require_links_inside(paths: list[str], root: str | os.PathLike) -> None:
    """Raises OutsideError if one of a set's links leads out of its folder ``root``, unless they are to be followed."""
    if FOLLOW_LINKS in os.environ:
        return
    for path in paths:
        try:
            require_inside(path, root)
        except OutsideError as error:
            raise advised(error) from None


def read_regular(path: str | os.PathLike, largest: int, root: str | os.PathLike | None = None) -> bytes:
    """Returns the content of a file of at most ``largest`` bytes; see open_regular.

    Raises:
        OSError: As open_regular; or the file is larger.
    """
    descriptor, size = _open(path, root)
    try:
        parts, left = [], largest + 1 if size <= largest else 0
        # Files of /proc have no size. One byte more than the size shows the end.
        while left and (part := os.read(descriptor, min(left, max(size + 1, 1 << 12)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if not left:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", os.fspath(path))
    return b"".join(parts)
