"""The folder of a training's checkpoints: lists, completes and removes them."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from partial_fc.utils.atomic_io import sync_folder
from partial_fc.utils.shared_folders import refuse_writable_by_others
from partial_fc.utils.staging import opened_folder

from .layout import LEFT, MANIFEST, OLD, WRITING, is_file_name, step_name, step_number
from .manifest import Manifest, write_manifest


class CheckpointFolder:
    """Checkpoints by number of updates. Only one rank calls the methods that rename.

    The methods that write or remove raise PermissionError if other users can write to the folder.

    Args:
        path: path of the folder, which need not exist.
        kept: number of checkpoints that `prune` keeps, at least 1.
    """

    def __init__(self, path: str, kept: int):
        if kept < 1:
            raise ValueError(f"checkpoints_kept is {kept}, expected 1 or more")
        self.path, self.kept = os.fspath(path), kept

    def complete(self) -> list[tuple[int, str]]:
        """Returns (num_update, path) of the complete checkpoints, newest first."""
        steps = [(step_number(name), os.path.join(self.path, name)) for name in self._names()]
        complete = [(n, path) for n, path in steps if n is not None and os.path.isfile(os.path.join(path, MANIFEST))]
        return sorted(complete, reverse=True)

    def begin(self, num_update: int) -> str:
        """Creates the folder for the files of an incomplete checkpoint and returns its path; called on any rank."""
        path = self._path(num_update) + WRITING
        self._refuse_other_owners()
        try:
            os.makedirs(path, exist_ok=True)
            if os.path.islink(path):  # only another user of the folder can have made it
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        except OSError as error:
            raise OSError(error.errno, f"cannot create {path}: {error.strerror}") from error
        return path

    def commit(self, num_update: int, manifest: Manifest) -> str:
        """Completes the checkpoint whose files have been written, and returns its path.

        Raises:
            OSError: A file is missing or cannot be written.
            ValueError: A file has another size than in the manifest.
        """
        aside, final = self._path(num_update) + WRITING, self._path(num_update)
        with opened_folder(aside) as opened:
            for name, entry in manifest.files.items():
                path, file = os.path.join(aside, name), os.path.join(opened, name)
                if not os.path.exists(file):
                    raise FileNotFoundError(
                        f"{path} does not exist, though its rank has written it: all hosts must see this folder, set "
                        "models_root to a shared disk"
                    )
                size = os.path.getsize(file)
                if size != entry.bytes:
                    raise ValueError(f"{path} has {size} bytes, expected {entry.bytes}")
            for name in os.listdir(opened):  # left by an earlier attempt with more ranks
                if is_file_name(name) and name not in manifest.files:
                    os.remove(os.path.join(opened, name))
            write_manifest(opened, manifest)
        os.rename(aside, final)  # this name means complete, so rename only when all files are on disk
        sync_folder(self.path)
        return final

    def prune(self) -> None:
        """Removes all complete checkpoints except the newest ``kept``; logs a warning for what cannot be removed."""
        with self._opened() as folder:
            try:
                for _, path in folder.complete()[self.kept :]:
                    # Renamed first, so that no power failure leaves half a checkpoint under a complete one's name.
                    os.rename(path, path + OLD)
                    sync_folder(folder.path)
            except OSError as error:
                logging.warning("cannot remove old checkpoints in %s: %s", self.path, error.strerror)
            self._remove(folder, (OLD,))

    def clean(self) -> None:
        """Removes incomplete checkpoints of earlier trainings, none of which may be running."""
        with self._opened() as folder:
            self._remove(folder, (WRITING, OLD))

    def set_aside_newer(self, num_update: int) -> list[str]:
        """Renames the complete checkpoints newer than this update; returns their new paths, newest first.

        The training that resumes from this update will write checkpoints of the same names.
        """
        self._refuse_other_owners()
        renamed = []
        for number, path in self.complete():
            if number > num_update:
                target, copies = path + LEFT, itertools.count(2)
                while os.path.exists(target):
                    target = f"{path}{LEFT}-{next(copies)}"
                os.rename(path, target)
                renamed.append(target)
        if renamed:
            sync_folder(self.path)
        return renamed

    @contextmanager
    def _opened(self) -> Iterator[CheckpointFolder]:
        """Yields this folder under a path that another user cannot redirect by replacing the folder."""
        if not os.path.exists(self.path):
            yield self
            return
        with opened_folder(os.path.realpath(self.path)) as opened:
            self._refuse_other_owners()
            if not os.path.samefile(opened, self.path):
                raise PermissionError(f"another user is replacing {self.path}")
            yield CheckpointFolder(opened, self.kept)

    def _refuse_other_owners(self) -> None:
        if os.path.islink(self.path):  # a link to another disk is fine if root or the output folder's owner made it
            makers = (os.geteuid(), 0, os.stat(os.path.dirname(self.path) or ".").st_uid)
            if os.lstat(self.path).st_uid not in makers:
                raise PermissionError(f"{self.path} is a link that another user has made: remove it")
        if os.path.exists(self.path):
            refuse_writable_by_others(self.path)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _path(self, num_update: int) -> str:
        return os.path.join(self.path, step_name(num_update))

    def _remove(self, folder: CheckpointFolder, endings: tuple[str, ...]) -> None:
        for name in folder._names():
            if name.endswith(endings) and step_number(name.split(".")[0]) is not None:
                path = os.path.join(self.path, name)
                try:
                    shutil.rmtree(os.path.join(folder.path, name))
                except OSError as error:
                    logging.warning("cannot remove %s (%s): remove it by hand to free the space", path, error.strerror)


def steps_at(path: str) -> list[str]:
    """Returns the complete checkpoints in a folder, newest first; or the path itself, if it is a checkpoint.

    Raises:
        FileNotFoundError: The folder has no complete checkpoint.
    """
    if os.path.exists(os.path.join(path, MANIFEST)):
        return [path]
    steps = [step for _, step in CheckpointFolder(path, kept=1).complete()]
    if not steps:
        raise FileNotFoundError(f"no complete checkpoint in {path}: give a training's folder named checkpoints")
    return steps
