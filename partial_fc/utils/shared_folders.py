"""Folders that other users can write to: a link that they put there would have files written elsewhere."""

import os
import stat
from shlex import quote


def refuse_writable_by_others(folder: str | os.PathLike, sticky: bool = False, read_only: bool = False) -> None:
    """Refuses a folder in which users other than its owner and its group can replace files, or that they can replace.

    The folder and the one that holds it are looked at, after links; not those above.

    Args:
        folder: exists.
        sticky: whether the sticky bit, as that of /tmp, is enough: new files get names that nobody can foresee.
        read_only: whether nothing is written. Else the folder of another user is refused, too, if it is in one like
            /tmp, where he may have been first, and of a group to which this user does not belong.

    Raises:
        PermissionError: They can; says what to do.
    """
    path = os.path.realpath(folder)
    parent = os.path.dirname(path)
    own, above = os.stat(path), os.stat(parent)
    for place, mode, is_enough in (path, own.st_mode, sticky), (parent, above.st_mode, True):
        if mode & stat.S_IWOTH and not (is_enough and mode & stat.S_ISVTX):
            raise PermissionError(
                f"all users can write to {place}, and could have put links there: look at what it holds, then chmod "
                f"o-w {quote(place)}, or name another folder"
            )
    trusted = own.st_uid in (os.geteuid(), 0, above.st_uid) or own.st_gid in (os.getegid(), *os.getgroups())
    if above.st_mode & stat.S_IWOTH and not (trusted or read_only):
        raise PermissionError(
            f"{path} belongs to another user (uid {own.st_uid}), who could have put links there, as all users can make "
            f"folders in {parent}: name another folder"
        )


def make_folder(folder: str | os.PathLike, sticky: bool = False) -> None:
    """Creates a folder if it is missing, and those that hold it; see refuse_writable_by_others."""
    os.makedirs(folder, exist_ok=True)
    refuse_writable_by_others(folder, sticky)


def keep_from_others() -> None:
    """From now on other users cannot write to what this process creates, whatever its umask was."""
    os.umask(os.umask(0o077) | stat.S_IWOTH)
