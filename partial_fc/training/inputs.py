"""Paths of the data that a training reads."""

from __future__ import annotations

import os


def record_path(settings) -> str:
    """Returns the path of the ``train.rec`` to train on."""
    return settings.rec or os.path.join(settings.data_root, settings.data_name, "train.rec")


def validation_sets(settings) -> dict[str, str]:
    """Returns the paths of the ``.bin`` files by name, existing or not; none in debug mode."""
    if settings.debug:
        return {}
    folder = os.path.dirname(record_path(settings))
    return {name: os.path.join(folder, f"{name}.bin") for name in settings.val_targets}
