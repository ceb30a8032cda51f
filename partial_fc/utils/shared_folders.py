"""Protection against links that other users place in shared folders, to have files written elsewhere."""

import errno
import os
import stat
from shlex import quote

MAX_LINKS = 40  # links per path, the limit of the kernel


def resolved(path: str | os.PathLike) -> str:
    """Returns the path with all links resolved, like os.path.realpath. The path need not exist.

    Raises:
        PermissionError: another user has created one of the links in a folder that all users can write to, such as
            /tmp. The kernel refuses such links as well if fs.protected_symlinks is 1.
    """
    prefix, parts, links = "/", os.path.join(os.getcwd(), path).split("/"), 0
    while parts:
        name = parts.pop(0)
        inner = {"": prefix, ".": prefix, "..": os.path.dirname(prefix)}.get(name, os.path.join(prefix, name))
        if not os.path.islink(inner):
            prefix = inner
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        folder, owner = os.stat(prefix), os.lstat(inner).st_uid
        if folder.st_mode & stat.S_IWOTH and owner not in (os.geteuid(), 0, folder.st_uid):
            raise PermissionError(
                f"{inner} is a link that another user (uid {owner}) has made in a folder that all users can write to: "
                "name another folder"
            )
        target = os.readlink(inner)
        parts, prefix = target.split("/") + parts, "/" if target.startswith("/") else prefix
    return prefix


def refuse_writable_by_others(folder: str | os.PathLike, sticky: bool = False, read_only: bool = False) -> None:
    """Refuses a folder that users outside of its group can write to or replace.

    After links are resolved, all users must not be able to write to the folder or its parent (a sticky bit is enough
    for the parent). In addition, unless the folder is only read, it and the folders above it must not have been
    created by another user in a folder like /tmp, where that user may have anticipated the path. This check ends at
    the first folder that belongs to another member of this user's groups.

    Args:
        folder: an existing folder.
        sticky: whether a sticky bit, as on /tmp, is enough, because new files get unpredictable names.
        read_only: whether nothing is written to the folder.

    Raises:
        PermissionError: other users can write to it; says what to do.
    """
    path = resolved(folder)
    parent = os.path.dirname(path)
    status, above = os.stat(path), os.stat(parent)
    for writable, mode, sticky_allowed in (path, status.st_mode, sticky), (parent, above.st_mode, True):
        if mode & stat.S_IWOTH and not (sticky_allowed and mode & stat.S_ISVTX):
            raise PermissionError(
                f"all users can write to {writable}, and could have put links there: look at what it holds, then chmod "
                f"o-w {quote(writable)}, or name another folder"
            )
    groups, trusted = {os.getegid(), *os.getgroups()}, (os.geteuid(), 0)
    while not read_only and path != parent and (status.st_uid in trusted or status.st_gid not in groups):
        is_shared = above.st_mode & stat.S_IWOTH and above.st_mode & stat.S_ISVTX
        if is_shared and status.st_uid not in (*trusted, above.st_uid):
            raise PermissionError(
                f"{path} belongs to another user (uid {status.st_uid}), who could have put links there, as all users "
                f"can make folders in {parent}: name another folder"
            )
        path, parent, status = parent, os.path.dirname(parent), above
        above = os.stat(parent)


def make_folder(folder: str | os.PathLike, sticky: bool = False) -> None:
    """Creates a folder and its parents if they are missing; see refuse_writable_by_others."""
    resolved(folder)  # refuses hostile links before anything is created behind them
    os.makedirs(folder, exist_ok=True)
    refuse_writable_by_others(folder, sticky)


def keep_from_others() -> None:
    """Extends the umask, so that other users cannot write to files that this process creates."""
    os.umask(os.umask(0o077) | stat.S_IWOTH)
