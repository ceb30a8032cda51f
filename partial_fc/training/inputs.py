"""Paths of the data that a training reads, and drawing the demo's faces before the first training on them."""

import os
from typing import Any

from partial_fc.data.sources.forms import is_name, is_record_set, make_shared_files, set_folder, set_in
from partial_fc.utils.text import say


def record_path(settings) -> str:
    """Returns the path of the ``train.rec`` to train on, or another form of ``rec``, see open_images."""
    return settings.rec or set_in(os.path.join(settings.data_root, settings.data_name))


def validation_sets(settings) -> dict[str, str]:
    """Returns the paths of the ``.bin`` files by name, existing or not; none in debug mode."""
    if settings.debug:
        return {}
    rec = record_path(settings)
    folder = os.path.join(settings.data_root, settings.data_name) if is_name(rec) else set_folder(rec)
    return {name: os.path.join(folder, f"{name}.bin") for name in settings.val_targets}


def check_records(rec: str) -> None:
    """Checks the path of a set, and makes files that the ranks of a host share, such as an index.

    Raises:
        OSError, ValueError, ImportError: The set cannot be read, has another form than ``rec`` says, or is
            arcface_torch's "synthetic". A missing set is reported by `require_set`.
    """
    make_shared_files(rec)
    if not is_record_set(rec) or os.path.exists(rec):
        return
    folder = os.path.dirname(rec)
    if os.path.basename(folder) == "synthetic":
        raise ValueError("rec is synthetic: set debug=True instead, for dummy images")
    if not is_record_set(folder):
        raise ValueError(f"{rec} does not exist, but {folder} is a set in another form: set rec={folder}")


def require_set(rec: str) -> None:
    """Raises FileNotFoundError or ValueError if a record set is missing; does not read it."""
    if not is_record_set(rec) or os.path.exists(rec):
        return
    from partial_fc.data.folder import list_folder  # needs OpenCV
    from partial_fc.data.recordio.format import require_file

    folder = os.path.dirname(rec)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder} does not exist: set rec to a folder of images, or another set")
    if list_folder(folder).images:
        raise ValueError(
            f"{folder} has images, but no folders: give the folder that has a folder for each class, such as "
            f"rec={os.path.dirname(folder)}"
        )
    require_file(rec, "the records")


def draw_demo(settings: Any, own_root: str) -> None:
    """Draws the faces of the demo if they are trained on and missing.

    Args:
        settings: settings of the training.
        own_root: data_root of the demo's preset, which is created if it is missing.

    Raises:
        OSError: The faces cannot be written.
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
            say(f"Drawing {DemoSize().images} faces into {folder}, once; this takes about a minute.")
            write_demo(folder)
