"""The data that a training reads: their paths, and the demo's faces, drawn before the first training on them."""

import os
from typing import Any


def record_path(settings) -> str:
    """Returns the path of the ``train.rec`` to train on."""
    return settings.rec or os.path.join(settings.data_root, settings.data_name, "train.rec")


def validation_sets(settings) -> dict[str, str]:
    """Returns the paths of the ``.bin`` files by name, existing or not; none in debug mode."""
    if settings.debug:
        return {}
    folder = os.path.dirname(record_path(settings))
    return {name: os.path.join(folder, f"{name}.bin") for name in settings.val_targets}


def check_records(path: str) -> None:
    """Checks what users of arcface_torch give in place of a ``train.rec``; other missing files are found when read.

    Raises:
        ValueError: The folder holds photos, or its name is that of dummy images.
    """
    folder = os.path.dirname(path)
    if os.path.exists(path):
        return
    if os.path.basename(folder) == "synthetic":
        raise ValueError("rec is synthetic: set debug=True instead, for dummy images")
    if os.path.isdir(folder) and any(entry.is_dir() for entry in os.scandir(folder)):
        raise ValueError(
            f"{folder} has no train.rec: partial-fc sets pack {folder} NEW_FOLDER makes one of a folder of photos per "
            "person; set rec to the new folder"
        )


def draw_demo(settings: Any, own_root: str) -> None:
    """Draws the faces of the demo if they are trained on and missing.

    Args:
        settings: of default.py.
        own_root: the data_root of the demo's preset, which is made where it is missing.

    Raises:
        OSError: They cannot be written.
        ValueError: The user has set a data_root that does not exist, and may have meant another data set.
    """
    if settings.dataset == "demo" and not settings.debug and not settings.rec:
        if settings.data_root != own_root and not os.path.isdir(settings.data_root):
            raise ValueError(
                f"data_root is {settings.data_root}, which does not exist, and the faces of the demo would be drawn "
                "there: create it, set another data_root, or set dataset to the set that you mean"
            )
        from partial_fc.data.synthetic import DemoSize, demo_set, write_demo

        folder = os.path.join(settings.data_root, settings.data_name)
        if not demo_set(folder).is_current():
            print(f"Drawing {DemoSize().images} faces into {folder}, once; this takes about a minute.", flush=True)
            write_demo(folder)
