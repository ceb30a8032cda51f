"""Folders that other users can write to: a link that they put there would have files written elsewhere."""

import errno
import os
import stat
from shlex import quote

MAX_LINKS = 40  # in a path, as the kernel has it


def resolved(path: str | os.PathLike) -> str:
    """Returns the path without links, as os.path.realpath, of which nothing need exist.

    Raises:
        PermissionError: Another user has put one of the links into a folder that all users can write to, such as /tmp;
            the kernel refuses these, too, where fs.protected_symlinks is 1.
    """
    place, left, links = "/", os.path.join(os.getcwd(), path).split("/"), 0
    while left:
        name = left.pop(0)
        inner = {"": place, ".": place, "..": os.path.dirname(place)}.get(name, os.path.join(place, name))
        if not os.path.islink(inner):
            place = inner
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        folder, maker = os.stat(place), os.lstat(inner).st_uid
        if folder.st_mode & stat.S_IWOTH and maker not in (os.geteuid(), 0, folder.st_uid):
            raise PermissionError(
                f"{inner} is a link that another user (uid {maker}) has made in a folder of all users: name another "
                "folder"
            )
        target = os.readlink(inner)
        left, place = target.split("/") + left, "/" if target.startswith("/") else place
    return place


def refuse_writable_by_others(folder: str | os.PathLike, sticky: bool = False, read_only: bool = False) -> None:
    """Refuses a folder in which users other than its owner and its group can replace files, or that they can replace.

    The folder and the one that holds it are looked at, after links (see resolved); of those above, up to one that
    another member of the group has made, only who has made them in one like /tmp.

    Args:
        folder: exists.
        sticky: whether the sticky bit, as that of /tmp, is enough: new files get names that nobody can foresee.
        read_only: whether nothing is written. Else the folder of another user is refused, too, if it is below one
            like /tmp, where he may have been first, and of a group to which this user does not belong.

    Raises:
        PermissionError: They can; says what to do.
    """
    path = resolved(folder)
    parent = os.path.dirname(path)
    own, above = os.stat(path), os.stat(parent)
    for place, mode, is_enough in (path, own.st_mode, sticky), (parent, above.st_mode, True):
        if mode & stat.S_IWOTH and not (is_enough and mode & stat.S_ISVTX):
            raise PermissionError(
                f"all users can write to {place}, and could have put links there: look at what it holds, then chmod "
                f"o-w {quote(place)}, or name another folder"
            )
    groups, mine = {os.getegid(), *os.getgroups()}, (os.geteuid(), 0)
    while not read_only and path != parent and (own.st_uid in mine or own.st_gid not in groups):
        if above.st_mode & stat.S_IWOTH and above.st_mode & stat.S_ISVTX and own.st_uid not in (*mine, above.st_uid):
            raise PermissionError(
                f"{path} belongs to another user (uid {own.st_uid}), who could have put links there, as all users can "
                f"make folders in {parent}: name another folder"
            )
        path, parent, own = parent, os.path.dirname(parent), above
        above = os.stat(parent)


def make_folder(folder: str | os.PathLike, sticky: bool = False) -> None:
    """Creates a folder if it is missing, and those that hold it; see refuse_writable_by_others."""
    resolved(folder)  # before folders are made where a link leads to
    os.makedirs(folder, exist_ok=True)
    refuse_writable_by_others(folder, sticky)


def keep_from_others() -> None:
    """From now on other users cannot write to what this process creates, whatever its umask was."""
    os.umask(os.umask(0o077) | stat.S_IWOTH)
