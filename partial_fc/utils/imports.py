"""Objects that a setting names: those of users as ``package.module:name``, and ours in the modules of a folder."""

import ast
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .config import SettingsError
from .text import quoted
from .user_code import LIBRARIES, errors_of, named_modules

# Source roots of the trainers in a clone. Environments that setup-utils has made contain them, those of users do not.
SOURCE_ROOTS = {"partial_fc_torch": "pytorch", "partial_fc_mxnet": "mxnet"}
OURS = {"partial_fc", *SOURCE_ROOTS}
EXAMPLES = Path(__file__).parents[2] / "examples"  # of a clone, whose settings files are ours
# Settings that may name an object of the user, and what else they take that has a colon but runs no code of others.
OBJECT_SETTINGS: dict[str, tuple[str, ...]] = {
    "center_optimizer": (),
    "margin": (),
    "network": ("timm:",),
    "optimizer": ("torch.optim:",),
    "rec": ("hf:",),
    "schedule": (),
    "task": (),
    "trackers": (),
}
TRUST, TRUST_HELP = "--trust-code", "run the code that the file of --config names as package.module:name"


def check_object_name(text: str, setting: str) -> None:
    """Raises ValueError, which names the setting, if a text is not of the form ``package.module:name``."""
    if not _names_object(text):
        raise ValueError(f"{setting} is {quoted(text)}, but must be a known name or package.module:name")


def trainer_root(package: str) -> Path:
    """Returns the folder that holds the package of a trainer: of the clone, or of the installed packages."""
    installed = Path(__file__).parents[2]
    in_clone = installed / SOURCE_ROOTS[package]
    return in_clone if in_clone.is_dir() else installed


def import_trainer(name: str) -> ModuleType:
    """Returns a module of a trainer, which this package must not import: tools load it for files of that trainer alone.

    Raises ImportError if it, or the framework, is not installed, and OSError if a library of the framework is missing.
    """
    root = str(trainer_root(name.partition(".")[0]))
    if root not in sys.path:
        sys.path.append(root)  # last: an installed trainer wins
    return importlib.import_module(name)


def refuse_code(path: str, settings: Mapping[str, Any], *trusted: Mapping[str, Any]) -> None:
    """Refuses a settings file that names code of others, which importing it would run.

    Args:
        path: of the file.
        settings: the settings of the file, without any that another source overrides.
        trusted: settings of other sources, which may name the same objects.

    Raises:
        SettingsError: an object of OBJECT_SETTINGS is neither ours nor trusted.
    """
    if Path(path).resolve().is_relative_to(EXAMPLES):
        return
    allowed = {name for source in trusted for _, name in code_in(source)}
    for setting, name in code_in(settings):
        if name not in allowed:
            raise SettingsError(
                f"{path} sets {setting} to {quoted(name)}, which would be imported and run: if you trust it, add "
                f"{TRUST}, or set {setting} to it on the command line, too"
            )


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (setting, ``package.module:name``) of all objects that settings name, but for ours."""
    for setting, others in OBJECT_SETTINGS.items():
        value = settings.get(setting)
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(name, str) and _names_object(name) and not (_is_ours(name) or name.startswith(others)):
                yield setting, name


def import_object(text: str, setting: str, *kinds: type, by_function: bool = True) -> Any:
    """Returns the object that ``package.module:name`` names; its module is imported.

    Args:
        text, setting: the name, and where it was given.
        kinds: what a class must be before it is called: derived from one of these, or with the methods of a Protocol.
        by_function: whether it may be a function, or another object that can be called, whose result is of this kind.

    Raises:
        ValueError: the text has another form, the module cannot be imported, does not have the name, or it names
            another kind of object.
    """
    check_object_name(text, setting)
    module_name, _, name = text.partition(":")
    advice = "; put it beside the program, install it, or add its folder to PYTHONPATH"
    with errors_of(f"{setting} is {text!r}, but {module_name} cannot be imported", advice):
        module = importlib.import_module(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{setting} is {text!r}, but {module_name} has no {name}")
        found = getattr(found, part)
    is_class = isinstance(found, type)
    if _is_ours(module_name):  # what it imports, and functions that write files, are not for settings to call
        is_allowed = is_class and _is_ours(found.__module__)
    else:
        is_allowed = not _is_pythons(found, module_name)
    is_kind = _is_of_kind(found if is_class else type(found), kinds)
    if not (is_allowed and (is_kind if is_class else by_function and (is_kind or callable(found)))):
        function = ", or a function" if by_function else ""
        raise ValueError(f"{setting} is {text!r}, which is {quoted(found)}: name {_described(kinds)}{function}")
    if module_name.partition(".")[0] != __name__.partition(".")[0]:
        named_modules.update((module_name, getattr(found, "__module__", module_name)))
    return found


def declared_keys(folder: str | os.PathLike, table: str) -> tuple[str, ...]:
    """Returns the keys of the dictionaries of this name in the modules of a folder, in the order of the files.

    They are read from the sources: the modules may import what is not installed here.
    """
    return tuple(
        ast.literal_eval(key)
        for path in sorted(Path(folder).glob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        if [ast.unparse(target) for target in node.targets] == [table]
        for key in node.value.keys
        if key is not None
    )


def _is_of_kind(found: type, kinds: Iterable[type]) -> bool:
    """Whether a class is derived from one of several, or has the methods of one that is a Protocol."""
    return any(
        all(_has_method(found, name, method) for name, method in declared.items())
        if (declared := _methods(kind)) is not None
        else issubclass(found, kind)
        for kind in kinds
    )


def _described(kinds: Iterable[type]) -> str:
    return ", or ".join(
        "a class with " + ", ".join(f"{name}({', '.join(_arguments(call)[1:])})" for name, call in declared.items())
        if (declared := _methods(kind)) is not None
        else f"a subclass of {kind.__module__}.{kind.__qualname__}"
        for kind in kinds
    )


def _methods(kind: type) -> dict[str, Callable[..., Any]] | None:
    """Returns the methods that a Protocol declares; None for another class."""
    if not getattr(kind, "_is_protocol", False):
        return None
    members = vars(kind).items()  # among them are some that typing adds
    return {name: each for name, each in members if inspect.isfunction(each) and each.__module__ == kind.__module__}


def _arguments(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)


def _has_method(found: type, name: str, declared: Callable[..., Any]) -> bool:
    """Whether a class has a method that can be called as a declared one; its metaclass has others."""
    method = next((vars(base)[name] for base in found.__mro__ if name in vars(base)), None)
    arguments = _arguments(declared)
    if isinstance(method, (staticmethod, classmethod)):
        method, arguments = getattr(found, name), arguments[1:]
    try:
        inspect.signature(method).bind(*arguments)
    except ValueError:  # written in C, it has no signature
        return True
    except TypeError:  # other arguments, or not callable
        return False
    return True


def _names_object(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _is_ours(name: str) -> bool:
    return name.replace(":", ".").partition(".")[0] in OURS


def _is_pythons(found: Any, module: str) -> bool:
    """Whether an object is of the standard library: no user's own, but able to do anything with arguments of a file."""
    while isinstance(found, functools.partial):
        found = found.func
    if inspect.isroutine(found) or isinstance(found, type):
        module = getattr(found, "__module__", None) or module
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_file = file.startswith(os.path.dirname(os.__file__) + os.sep) and not LIBRARIES & set(file.split(os.sep))
    return module in sys.builtin_module_names or is_file
