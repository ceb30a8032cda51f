"""Code of users: the errors that it raises as one line, and where it raised them, such as in a task or a margin."""

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any

from .config import SettingsError

named_modules: set[str] = set()  # those of users whose objects settings name
OURS = {
    "partial_fc",
    "partial_fc_mxnet",
    "partial_fc_tools",
    "partial_fc_torch",
    "default",
    "train",
    "train_memory",
    "train_v2",
}
LIBRARIES = {"site-packages", "dist-packages"}  # folders


@contextmanager
def errors_of(what: str, advice: str = "") -> Iterator[None]:
    """Turns what the code of a user raises, be it SystemExit, into a SettingsError of one line.

    Args:
        what: begins the message, as "lr_func failed".
        advice: ends it.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise refusal(error, f"{what}: ", advice) from error


def make(setting: str, name: str, maker: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Returns what a class or function makes that a setting names; its errors are those of `errors_of`."""
    with errors_of(f"{setting} is {name!r}, but cannot be made with {options}"):
        return maker(*arguments, **options)


def refusal(error: BaseException, what: str = "", advice: str = "") -> SettingsError:
    """Returns the SettingsError that stands for an error of the user's code; for the arguments see `errors_of`."""
    refused = SettingsError(f"{what}{described(error)}{advice}")
    refused.__cause__ = error
    return refused


def described(error: BaseException) -> str:
    """Returns the text of an error in one line, after the name of its class unless it was written for the user."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{name}: {text}" if text else name


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
