"""Writes groups of files and folders that appear only once complete; utils/atomic_io.py writes single files."""

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from .regular_files import read_regular
from .shared_folders import make_folder, resolved
from .text import some

PREFIX = ".partial_fc-"  # prefix of temporary folders
MARKER = f"{PREFIX}files.json"  # lists the files of a staged folder, which --force may replace
LARGEST = 1 << 30  # limit of this list in bytes
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staged_files(folder: str | os.PathLike, names: Sequence[str], force: bool) -> Iterator[str]:
    """Yields an empty temporary folder; its files move to `folder` when the block ends without an exception.

    Args:
        folder: target folder. If missing, it is created, and removed again after an exception.
        names: names of the files. Readers look for the first one, so it moves last.
        force: replace existing files.

    Raises:
        FileExistsError: a file exists and `force` is not set; raised before the block runs.
        OSError: a file cannot be written, or all users can write to `folder`; the message names the folder.
    """
    folder = os.fspath(folder) or "."
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            raise IsADirectoryError(f"{path} is a folder: name another path")
        if os.path.lexists(path) and not force:
            raise FileExistsError(f"{path} already exists: name another path, or replace it with --force")
    created = not os.path.isdir(folder)
    try:
        make_folder(folder, sticky=True)
        with opened_folder(folder) as opened, temporary_folder(opened, folder) as stage:
            yield stage
            if len(names) > 1:  # readers must not find the old first file together with new other files
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(opened, names[0]))
            for name in reversed(names):
                os.replace(os.path.join(stage, name), os.path.join(opened, name))
        created = False
    finally:
        if created:
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def staged_folder(folder: str | os.PathLike, force: bool | None = None, own: Iterable[str] = ()) -> Iterator[str]:
    """Yields an empty temporary folder that becomes `folder` when the block ends without an exception.

    Args:
        folder: target folder, missing or empty. A link to a folder remains a link.
        force: replace the folder if this function wrote all its files, except those in `own`. None if the caller has
            no such option: then the files are not recorded in MARKER.
        own: relative paths of other files that may be replaced.

    Raises:
        FileExistsError: `folder` is not empty and `force` is not set, or it contains other files.
        OSError: the folder cannot be written, or all users can write to its parent; the message names the folder.
    """
    folder = resolved(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise FileExistsError(f"{folder} is not a folder: name another one")
    if force:
        _refuse_others(folder, folder, own)
    elif os.path.isdir(folder) and os.listdir(folder):
        raise FileExistsError(f"{folder} already exists and is not empty: name another folder, or empty this one")
    parent, name = os.path.split(folder)
    make_folder(parent, sticky=True)
    with opened_folder(parent) as opened, temporary_folder(opened, folder) as temporary:
        target = os.path.join(opened, name)
        stage = os.path.join(temporary, "new")
        os.mkdir(stage)  # the temporary folder itself has mode 0700, the result must follow the umask
        yield stage
        if force is not None:
            written = sorted(_files_below(stage))
            with open(os.path.join(stage, MARKER), "w", encoding="utf-8") as file:
                json.dump(written, file, indent=0)
        old = os.path.join(temporary, "old")
        try:
            if force:
                with suppress(FileNotFoundError):
                    os.rename(target, old)
                _refuse_others(old, folder, own)  # again, for files that came while the block ran
            os.rename(stage, target)
        finally:  # after Ctrl-C between the two renames, the old folder must not be removed with the temporary one
            if not os.path.lexists(target):
                with suppress(FileNotFoundError):
                    os.rename(old, target)


def _refuse_others(folder: str, name: str, own: Iterable[str]) -> None:
    """Raises FileExistsError if staged_folder did not write all files in a folder. The message calls it `name`."""
    known = {MARKER, *own}
    with suppress(OSError, ValueError, TypeError, RecursionError):
        known.update(json.loads(read_regular(os.path.join(folder, MARKER), LARGEST)))
    if others := sorted(_files_below(folder) - known):
        raise FileExistsError(
            f"{name} holds {some(others)}, which no command of partial-fc wrote there: move them "
            "elsewhere, or name another folder"
        )


def _files_below(folder: str) -> set[str]:
    """Returns the relative paths of all files and links below a folder; empty if it does not exist."""

    def refuse(error: OSError) -> None:  # a folder that cannot be read may contain other files
        if not isinstance(error, FileNotFoundError):
            raise error

    paths: set[str] = set()
    for path, folders, files in os.walk(folder, onerror=refuse):
        links = (name for name in folders if os.path.islink(os.path.join(path, name)))
        paths.update(os.path.relpath(os.path.join(path, name), folder) for name in (*files, *links))
    return paths


@contextmanager
def temporary_folder(parent: str, target: str) -> Iterator[str]:
    """Yields a new folder in `parent` and removes it at the end. Errors of writing to it name `target` instead.

    The yielded path is from opened_folder(), because a member of the parent's group can move the folder and put another
    folder or a link in its place.
    """
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    try:
        with opened_folder(folder) as opened:
            if os.listdir(opened):
                raise FileExistsError(f"{target}: another user has replaced the temporary folder in it: try again")
            try:
                yield opened
            except OSError as error:  # an error of a full disk names no file, or a file in the temporary folder
                inside = error.filename is None or os.fsdecode(error.filename).startswith(opened)
                if error.errno is None or not inside or isinstance(error, BrokenPipeError):
                    raise
                fix = ": free space there, or name another folder" if error.errno in NO_SPACE else ""
                raise OSError(f"{target} cannot be written: {os.strerror(error.errno)}{fix}") from error
            finally:
                empty_folder(opened)
    finally:
        with suppress(OSError):
            os.rmdir(folder)


@contextmanager
def opened_folder(path: str) -> Iterator[str]:
    """Yields a path to a folder that remains valid for all processes of this user if the folder is moved or replaced.

    Errors in the block name `path` instead. Raises OSError if `path` is a link or not a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    opened = f"/proc/{os.getpid()}/fd/{descriptor}"
    try:
        yield opened
    except OSError as error:
        if opened not in str(error):
            raise
        arguments = [part.replace(opened, path) if isinstance(part, str) else part for part in error.args]
        filename = () if error.filename is None else (os.fsdecode(error.filename).replace(opened, path),)
        raise type(error)(*arguments, *filename) from error
    finally:
        os.close(descriptor)


def empty_folder(opened: str) -> None:
    """Removes the content of a folder from opened_folder() as far as possible; does not follow links."""
    with suppress(OSError):
        for _, folders, files, inside in os.fwalk(os.path.join(opened, "."), topdown=False):
            for name in (*files, *folders):
                with suppress(OSError):
                    try:
                        os.unlink(name, dir_fd=inside)
                    except (IsADirectoryError, PermissionError):
                        os.rmdir(name, dir_fd=inside)
