"""Groups of files and whole folders that appear only when they are complete; utils/atomic_io.py writes single files."""

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from .regular_files import read_regular
from .shared_folders import make_folder, resolved
from .text import some

PREFIX = ".partial_fc-"  # of temporary folders
MARKER = f"{PREFIX}files.json"  # the files of a staged folder, which --force may replace
LARGEST = 1 << 30  # bytes of MARKER
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staged_files(folder: str | os.PathLike, names: Sequence[str], force: bool) -> Iterator[str]:
    """Yields an empty folder to write files into; without an exception they move to `folder`.

    Args:
        folder: is created if it is missing, and removed again after an exception.
        names: the files. The first one, which readers look for, moves last.
        force: replace existing files.

    Raises:
        FileExistsError: before anything is written, if a file exists and `force` is not set.
        OSError: a file cannot be written; names `folder`. All users can replace what is in it.
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
        with opened_folder(folder) as place, temporary_folder(place, folder) as stage:
            yield stage
            if len(names) > 1:  # an old first file must not be found beside new others
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(place, names[0]))
            for name in reversed(names):
                os.replace(os.path.join(stage, name), os.path.join(place, name))
        created = False
    finally:
        if created:
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def staged_folder(folder: str | os.PathLike, force: bool | None = None, own: Iterable[str] = ()) -> Iterator[str]:
    """Yields an empty folder that is renamed to `folder` when the block ends without an exception.

    Args:
        folder: must be missing or empty. A link to a folder stays one.
        force: replace a folder in which all files were written by this function, or are `own`. None if the caller
            never does: then the files are not recorded in MARKER.
        own: relative paths of other files that may be replaced.

    Raises:
        FileExistsError: `folder` is not empty and `force` is not set, or there are other files in it.
        OSError: it cannot be written; names `folder`. All users can replace what is in the folder that holds it.
    """
    folder = resolved(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise FileExistsError(f"{folder} is no folder: name another one")
    if force:
        _refuse_others(folder, folder, own)
    elif os.path.isdir(folder) and os.listdir(folder):
        raise FileExistsError(f"{folder} already exists and is not empty: name another folder, or empty this one")
    parent, name = os.path.split(folder)
    make_folder(parent, sticky=True)
    with opened_folder(parent) as place, temporary_folder(place, folder) as temporary:
        target = os.path.join(place, name)
        stage = os.path.join(temporary, "new")
        os.mkdir(stage)  # not the temporary folder itself, which only its owner may read
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
                _refuse_others(old, folder, own)  # which came while the block ran
            os.rename(stage, target)
        finally:  # after Ctrl-C between both, the old folder would be removed with the temporary one
            if not os.path.lexists(target):
                with suppress(FileNotFoundError):
                    os.rename(old, target)


def _refuse_others(folder: str, name: str, own: Iterable[str]) -> None:
    """Raises FileExistsError if a folder, which messages call `name`, holds files that staged_folder did not write."""
    known = {MARKER, *own}
    with suppress(OSError, ValueError, TypeError, RecursionError):
        known.update(json.loads(read_regular(os.path.join(folder, MARKER), LARGEST)))
    if others := sorted(_files_below(folder) - known):
        raise FileExistsError(
            f"{name} holds {some(others)}, which it does not record as written by a command of partial-fc: move them "
            "elsewhere, or name another folder"
        )


def _files_below(folder: str) -> set[str]:
    """Returns the relative paths of all files and links in a folder, if there is one, and in those below."""

    def unread(error: OSError) -> None:  # it may hold others
        if not isinstance(error, FileNotFoundError):
            raise error

    found: set[str] = set()
    for path, folders, files in os.walk(folder, onerror=unread):
        links = (name for name in folders if os.path.islink(os.path.join(path, name)))
        found.update(os.path.relpath(os.path.join(path, name), folder) for name in (*files, *links))
    return found


@contextmanager
def temporary_folder(parent: str, target: str) -> Iterator[str]:
    """Yields a new folder in `parent` and removes it at the end. Errors of writing into it name `target`.

    The error of a full disk names no file, or one in the temporary folder. The folder's name does not depend on the
    process id: containers and hosts that share `parent` have the same ones. Its path is that of opened_folder, as a
    member of the group of `parent` can move it, and put another folder or a link in its place.
    """
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    try:
        with opened_folder(folder) as place:
            if os.listdir(place):
                raise FileExistsError(f"{target}: another user has replaced the temporary folder in it: try again")
            try:
                yield place
            except OSError as error:
                inside = error.filename is None or os.fsdecode(error.filename).startswith(place)
                if error.errno is None or not inside or isinstance(error, BrokenPipeError):
                    raise
                fix = ": free space there, or name another folder" if error.errno in NO_SPACE else ""
                raise OSError(f"{target} cannot be written: {os.strerror(error.errno)}{fix}") from error
            finally:
                empty_folder(place)
    finally:
        with suppress(OSError):
            os.rmdir(folder)


@contextmanager
def opened_folder(path: str) -> Iterator[str]:
    """Yields a path by which all processes of this user reach a folder, whatever is in the place of its name.

    Errors name `path`. Raises OSError if there is no folder, but a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    place = f"/proc/{os.getpid()}/fd/{descriptor}"
    try:
        yield place
    except OSError as error:
        if place not in str(error):
            raise
        named = [part.replace(place, path) if isinstance(part, str) else part for part in error.args]
        name = () if error.filename is None else (os.fsdecode(error.filename).replace(place, path),)
        raise type(error)(*named, *name) from error
    finally:
        os.close(descriptor)


def empty_folder(place: str) -> None:
    """Removes what is in a folder, given by opened_folder, as far as it can be removed; follows no links."""
    with suppress(OSError):
        for _, folders, files, inside in os.fwalk(os.path.join(place, "."), topdown=False):
            for name in (*files, *folders):
                with suppress(OSError):
                    try:
                        os.unlink(name, dir_fd=inside)
                    except (IsADirectoryError, PermissionError):
                        os.rmdir(name, dir_fd=inside)
