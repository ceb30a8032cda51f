"""Files named by data that others may have made: regular, of bounded size, inside the folder of the data."""

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike, root: str | os.PathLike | None = None) -> BinaryIO:
    """Opens a regular file for reading, unbuffered. Waits at no named pipe and reads no device.

    Args:
        path: links are followed.
        root: a folder that holds the file, also after links in both paths are resolved; None for any folder.

    Raises:
        OSError: The file cannot be opened, is no regular file, or is outside of `root`.
    """
    if root is not None:
        inside, target = os.path.realpath(root), os.path.realpath(path)
        if os.path.commonpath([inside, target]) != inside:
            raise PermissionError(errno.EACCES, f"it is outside of {os.fspath(root)}", os.fspath(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no regular file", os.fspath(path))


def read_regular(path: str | os.PathLike, largest: int, root: str | os.PathLike | None = None) -> bytes:
    """Returns the content of a file of at most ``largest`` bytes; see open_regular.

    Raises:
        OSError: As open_regular; or the file is larger.
    """
    with open_regular(path, root) as file:
        parts, left = [], largest + 1
        while left and (part := file.read(min(left, 1 << 24))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", os.fspath(path))
    return b"".join(parts)
