"""The folder of a training's checkpoints: which are complete, and how one becomes so."""

from __future__ import annotations

import logging
import os
import shutil

from partial_fc.utils.atomic_io import sync_folder

from .layout import LEFT, MANIFEST, OLD, WRITING, is_file_name, step_name, step_number
from .manifest import Manifest, write_manifest


class CheckpointFolder:
    """Checkpoints by the number of their updates. Names are changed on one rank only.

    Args:
        path: of the folder; it need not be there.
        kept: how many :meth:`prune` leaves, at least 1.
    """

    def __init__(self, path: str, kept: int):
        if kept < 1:
            raise ValueError(f"{kept} checkpoints cannot be kept: at least 1 is")
        self.path, self.kept = os.fspath(path), kept

    def complete(self) -> list[tuple[int, str]]:
        """(num_update, path) of the complete checkpoints, the newest first."""
        found = [(step_number(name), os.path.join(self.path, name)) for name in self._names()]
        whole = [(n, path) for n, path in found if n is not None and os.path.isfile(os.path.join(path, MANIFEST))]
        return sorted(whole, reverse=True)

    def begin(self, num_update: int) -> str:
        """Makes the folder that the files of a checkpoint are written to, and returns its path; all ranks may.

        Raises:
            OSError: it cannot be made.
        """
        path = self._path(num_update) + WRITING
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"cannot make {path}: {error.strerror}") from error
        return path

    def commit(self, num_update: int, manifest: Manifest) -> str:
        """Makes what has been written a complete checkpoint, and returns its path.

        Raises:
            OSError: a file is missing, or the disk refuses.
            ValueError: a file has another size than the manifest says.
        """
        aside, final = self._path(num_update) + WRITING, self._path(num_update)
        for name, entry in manifest.files.items():
            path = os.path.join(aside, name)
            if not os.path.exists(path):
                raise FileNotFoundError(
                    f"{path} is not there, though its rank has written it: all hosts must see this folder, set "
                    "models_root to a disk that they share"
                )
            size = os.path.getsize(path)
            if size != entry.bytes:
                raise ValueError(f"{path} has {size} bytes, {entry.bytes} were written")
        for name in os.listdir(aside):  # of an earlier attempt with more ranks
            if is_file_name(name) and name not in manifest.files:
                os.remove(os.path.join(aside, name))
        write_manifest(aside, manifest)
        os.rename(aside, final)
        sync_folder(self.path)
        return final

    def prune(self) -> None:
        """Removes the complete checkpoints but the newest ones; what cannot be removed is a warning."""
        try:
            for _, path in self.complete()[self.kept :]:
                # Never half a checkpoint under the name of a complete one, after a loss of power either.
                os.rename(path, path + OLD)
                sync_folder(self.path)
        except OSError as error:
            logging.warning("cannot remove old checkpoints in %s: %s", self.path, error)
        self._remove((OLD,))

    def clean(self) -> None:
        """Removes what a training that ended in a save has left of it; no other may be running."""
        self._remove((WRITING, OLD))

    def leave(self, num_update: int) -> list[str]:
        """Gives the complete checkpoints newer than this update another name; returns their new paths, newest first.

        They belong to a training that nobody goes on with. Their place is needed by the one that does.
        """
        left = []
        for number, path in self.complete():
            if number > num_update:
                left.append(_unused(path + LEFT))
                os.rename(path, left[-1])
        if left:
            sync_folder(self.path)
        return left

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _path(self, num_update: int) -> str:
        return os.path.join(self.path, step_name(num_update))

    def _remove(self, endings: tuple[str, ...]) -> None:
        for name in self._names():
            if name.endswith(endings) and step_number(name.split(".")[0]) is not None:
                path = os.path.join(self.path, name)
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    logging.warning("cannot remove %s (%s): it takes room for nothing", path, error.strerror)


def _unused(path: str) -> str:
    number, name = 1, path
    while os.path.exists(name):
        number += 1
        name = f"{path}-{number}"
    return name
