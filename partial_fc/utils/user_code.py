"""Where in a user's own code an error was raised, such as in the class of a task, Dataset or margin."""

import os
import sysconfig
from traceback import walk_tb
from types import FrameType

from .imports import named_modules

OURS = {"partial_fc", "partial_fc_mxnet", "partial_fc_torch", "default", "train", "train_memory", "train_v2"}
LIBRARIES = {"site-packages", "dist-packages"}  # folders


def place_in_user_code(error: BaseException | None) -> str:
    """Returns what of the user's was called, and where it failed, as "Signals.items, signals.py:23"; empty for none.

    That of the error itself, if the user's code has raised it, otherwise that of its cause.
    """
    while error is not None:
        places = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_users(frame)]
        if places:
            (called, _), (frame, line) = places[0], places[-1]
            place = f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{line}"
            name = called.f_code.co_name
            owner = f"{type(called.f_locals['self']).__name__}." if "self" in called.f_locals else ""
            return place if name.startswith("<") else f"{owner}{name}, {place}"
        error = error.__cause__ or error.__context__
    return ""


def _is_users(frame: FrameType) -> bool:
    module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    if module in named_modules:  # also if it is installed
        return True
    is_library = path.startswith(("<", sysconfig.get_path("stdlib"))) or LIBRARIES & set(path.split(os.sep))
    return not is_library and module.partition(".")[0] not in {*OURS, "__main__"}
