"""Groups of files and whole folders that appear only when they are complete; utils/atomic_io.py writes single files."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

PREFIX = ".partial_fc-"  # of temporary folders
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
        OSError: a file cannot be written; names `folder`.
    """
    folder = os.fspath(folder) or "."
    for name in names:
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not force:
            raise FileExistsError(f"{path} already exists: name another path, or replace it with --force")
    created = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        with _temporary_folder(folder, folder) as stage:
            yield stage
            if len(names) > 1:  # an old first file must not be found beside new others
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(folder, names[0]))
            for name in reversed(names):
                os.replace(os.path.join(stage, name), os.path.join(folder, name))
        created = False
    finally:
        if created:
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def staged_folder(folder: str | os.PathLike, force: bool = False) -> Iterator[str]:
    """Yields an empty folder that is renamed to `folder` when the block ends without an exception.

    Args:
        folder: must be missing or empty.
        force: replace an existing folder with all that is in it.

    Raises:
        FileExistsError: `folder` is not empty and `force` is not set.
        OSError: it cannot be written; names `folder`.
    """
    folder = os.path.abspath(folder)
    if not force and os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise FileExistsError(f"{folder} already exists and is not empty: name another folder, or empty this one")
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    with _temporary_folder(parent, folder) as temporary:
        stage = os.path.join(temporary, "new")
        os.mkdir(stage)  # not the temporary folder itself, which only its owner may read
        yield stage
        old = os.path.join(temporary, "old")
        try:
            if force:
                with suppress(FileNotFoundError):
                    os.rename(folder, old)
            os.rename(stage, folder)
        finally:  # after Ctrl-C between both, the old folder would be removed with the temporary one
            if not os.path.lexists(folder):
                with suppress(FileNotFoundError):
                    os.rename(old, folder)


@contextmanager
def _temporary_folder(parent: str, target: str) -> Iterator[str]:
    """Yields a new folder in `parent` and removes it at the end. Errors of writing into it name `target`.

    The error of a full disk names no file, or one in the temporary folder. The folder's name does not depend on the
    process id: containers and hosts that share `parent` have the same ones.
    """
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    try:
        yield folder
    except OSError as error:
        inside = error.filename is None or os.fsdecode(error.filename).startswith(folder)
        if error.errno is None or not inside or isinstance(error, BrokenPipeError):
            raise
        fix = ": free space there, or name another folder" if error.errno in NO_SPACE else ""
        raise OSError(f"{target} cannot be written: {os.strerror(error.errno)}{fix}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
