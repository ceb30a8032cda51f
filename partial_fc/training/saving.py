"""Saving the model at regular updates, and the metadata of a saved backbone."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from partial_fc.checkpoint.rank_files import remove_files_of_other_ranks
from partial_fc.distributed.collectives import Collectives

ONNX_NAME = "backbone.onnx"
AVERAGE = "backbone_ema"  # file name of the moving average, without its ending


class SaveCallback:
    """A callback that calls ``action(num_update)`` every ``frequent`` updates, at most once per update.

    ``trial()`` is called after the first update, so that what cannot be saved fails at once, and not after hours.
    """

    def __init__(self, frequent: int, action: Callable[[int], object], trial: Callable[[], object] | None = None):
        self.frequent = frequent
        self._action, self._trial = action, trial
        self._done: int | None = None

    def __call__(self, param) -> None:
        """Saves every ``frequent`` updates; called on every rank."""
        if self._trial is not None:
            self._trial()
            self._trial = None
        if param.num_update % self.frequent == 0:
            self.save(param.num_update)

    def save(self, num_update: int) -> None:
        """Saves now, unless this update is saved already.

        Raises:
            JobError: On every rank, if one cannot write, or an ONNX file gives other embeddings than the backbone.
        """
        if self._done != num_update:
            self._action(num_update)
            self._done = num_update


class CenterSave(SaveCallback):
    """Saves every rank's class centers, and removes the files of ranks that only an earlier, larger job had.

    Collectives of a save: all-gathers ``status.save_centers`` and ``status.remove_centers``.

    Args:
        collectives: between the ranks.
        frequent: updates between saves.
        write: writes this rank's files.
        folder, names: folder and names of the files, with {} for the rank.
    """

    def __init__(
        self,
        collectives: Collectives,
        frequent: int,
        write: Callable[[], None],
        folder: str,
        names: Sequence[str],
    ):
        super().__init__(frequent, self._save)
        self._collectives, self._write, self._folder, self._names = collectives, write, folder, names

    def _save(self, num_update: int) -> None:
        self._collectives.run_on_all_ranks("save_centers", self._write)
        # Files left there would look like the centers of further classes.
        self._collectives.on_rank_zero(
            "remove_centers", remove_files_of_other_ranks, self._folder, self._names, self._collectives.size
        )


def remove_average(folder: str) -> None:
    """Removes the files of a moving average, for a training without one: they are of an earlier training."""
    for name in (f"{AVERAGE}.pth", f"{AVERAGE}.onnx", safetensors_name(AVERAGE)):
        with suppress(FileNotFoundError):
            os.remove(os.path.join(folder, name))


def safetensors_name(name: str) -> str:
    """Returns the name of the file of safetensors beside ``<name>.pth``; model hubs expect model.safetensors."""
    return f"{name.replace('backbone', 'model')}.safetensors"


def onnx_metadata(
    settings: Mapping[str, Any],
    of_verification: Callable[[int, bool], Mapping[str, str]],
    num_update: int,
    averaged: bool = False,
) -> dict[str, str]:
    """Returns the metadata of an ONNX file: the origin of the weights, and results if they were just verified.

    ``of_verification``: see CallBackVerification.metadata; ``averaged``: whether the file has the moving average of the
    weights.
    """
    names = ("network", "task", "dataset", "loss", "num_classes", "sample_ratio", "rand_mirror")
    origin = {name: str(settings[name]) for name in names}
    return {**origin, "num_update": str(num_update), **of_verification(num_update, averaged)}
