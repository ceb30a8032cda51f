"""Errors of the user's code, such as a task or a margin: their message in one line, and their place in that code."""

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any

from .config import SettingsError

named_modules: set[str] = set()  # modules of the user's objects that settings name
PACKAGES = {"partial_fc", "partial_fc_mxnet", "partial_fc_torch"}
PROGRAMS = {"partial_fc_tools", "default", "train", "train_memory", "train_v2", "__main__"}
LIBRARIES = {"site-packages", "dist-packages"}  # names of folders


@contextmanager
def errors_of(what: str, advice: str = "") -> Iterator[None]:
    """Turns errors of the user's code, including SystemExit, into a SettingsError with a message of one line.

    Args:
        what: beginning of the message, such as "lr_func failed".
        advice: end of the message.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise refusal(error, f"{what}: ", advice) from error


def make(setting: str, name: str, maker: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the class or function that a setting names; its errors become SettingsError, see errors_of()."""
    with errors_of(f"{setting} is {name!r}, but cannot be created with {options}"):
        return maker(*arguments, **options)


def refusal(error: BaseException, what: str = "", advice: str = "") -> SettingsError:
    """Returns the SettingsError for an error of the user's code. For the arguments see errors_of()."""
    refused = SettingsError(f"{what}{described(error)}{advice}")
    refused.__cause__ = error
    return refused


def described(error: BaseException) -> str:
    """Returns the message of an error in one line, after the name of its class unless it is a ValueError."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{name}: {text}" if text else name


def place_in_user_code(error: BaseException | None) -> str:
    """Returns the user's function and line in which an error arose, as "Signals.items, signals.py:23"; "" for none.

    If the error did not arise in the user's code, its causes are searched.
    """
    while error is not None:
        frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_users(frame)]
        if frames:
            (called, _), (frame, line) = frames[0], frames[-1]
            place = f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{line}"
            name = called.f_code.co_name
            owner = f"{type(called.f_locals['self']).__name__}." if "self" in called.f_locals else ""
            return place if name.startswith("<") else f"{owner}{name}, {place}"
        error = error.__cause__ or error.__context__
    return ""


def _is_users(frame: FrameType) -> bool:
    module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    if module in named_modules:  # even if it is an installed package
        return True
    is_library = path.startswith(("<", sysconfig.get_path("stdlib"))) or LIBRARIES & set(path.split(os.sep))
    return not is_library and module.partition(".")[0] not in PACKAGES | PROGRAMS
