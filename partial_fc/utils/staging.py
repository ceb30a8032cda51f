"""Results that appear only when they are whole, and what is said meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staged_files(folder: str | os.PathLike, names: Sequence[str], force: bool) -> Iterator[str]:
    """A fresh folder to write the files `names` into; without an exception they move to `folder`, the first one last.

    Raises FileExistsError, before anything is written, if one of them is there already and `force` is not set, and
    OSError naming `folder` where it has no room.
    """
    folder = os.fspath(folder) or "."
    for name in names:
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not force:
            raise FileExistsError(f"{path} is there already: name another place, or replace it with --force")
    made = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    stage = new_folder(folder)
    try:
        with named_errors(folder, stage):
            yield stage
        # Readers look for the first file; an old one must not stand beside new others.
        with suppress(FileNotFoundError):
            os.remove(os.path.join(folder, names[0]))
        for name in reversed(names):
            os.replace(os.path.join(stage, name), os.path.join(folder, name))
        made = False
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if made:
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def staged_folder(folder: str | os.PathLike) -> Iterator[str]:
    """A fresh folder that gets the name `folder` when the block ends without an exception.

    Raises FileExistsError if `folder` is there and not empty, and OSError naming it where it has no room.
    """
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise FileExistsError(f"{folder} is there already and not empty: name another folder, or empty this one")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    stage = new_folder(os.path.dirname(folder))
    try:
        with named_errors(folder, stage):
            yield stage
        os.rename(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def new_folder(parent: str) -> str:
    """A folder in `parent` that nobody else has, with the permissions of the user's umask (mkdtemp's are private).

    Its name is no process id: containers and hosts that share `parent` have the same ones.
    """
    path = tempfile.mkdtemp(prefix=".face_sets-", dir=parent)
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o777 & ~mask)
    return path


@contextmanager
def named_errors(folder: str, stage: str) -> Iterator[None]:
    """Errors of writing into `stage` name `folder`: those of a full disk name no file, or one that soon is gone."""
    try:
        yield
    except OSError as error:
        own = error.filename is None or os.fsdecode(error.filename).startswith(stage)
        if error.errno is None or not own or isinstance(error, BrokenPipeError):
            raise
        mend = ": free space there, or name another folder" if error.errno in NO_ROOM else ""
        raise OSError(f"{folder} cannot be written: {error.strerror}{mend}") from error


def progress(total: int | None, unit: str, text: str) -> Any:
    """A progress bar on stderr, or nothing where stderr is no terminal."""
    return tqdm(total=total, unit=unit, desc=text, disable=None, unit_scale=True, dynamic_ncols=True)


def amount(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 image", "2 images", "1,000,000 images"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
