"""Imports the objects that settings name as ``package.module:name``, and the modules of the trainers."""

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
from .user_code import LIBRARIES, PACKAGES, errors_of, named_modules

# Source roots of the trainers in a clone, which are on the path only in the environments of setup-utils.
SOURCE_ROOTS = {"partial_fc_torch": "pytorch", "partial_fc_mxnet": "mxnet"}
OF_TIMM = "timm:NAME for a network of timm"  # ends errors of the PyTorch trainer about unknown networks
EXAMPLES = Path(__file__).parents[2] / "examples"  # of a clone; their settings files are trusted
# Settings that may name an object of the user -> prefixes of values that run none of the user's code.
OBJECT_SETTINGS: dict[str, tuple[str, ...]] = {
    "center_optimizer": (),
    "margin": (),
    "network": ("timm:",),
    "objective": (),
    "optimizer": ("torch.optim:",),
    "rec": ("hf:",),
    "schedule": (),
    "task": (),
    "trackers": (),
    "val_targets": (),
}
folders_of_code: list[str] = []  # further folders in which the user's modules are searched
TRUST, TRUST_HELP = "--trust-code", "run the code that the file of --config names as package.module:name"


def check_object_name(text: str, setting: str) -> None:
    """Raises ValueError with the setting's name unless ``text`` has the form ``package.module:name``."""
    if not _names_object(text):
        raise ValueError(f"{setting} is {quoted(text)}, but must be a known name or package.module:name")


def trainer_root(package: str) -> Path:
    """Returns the folder that contains a trainer's package, in the clone or among the installed packages."""
    installed = Path(__file__).parents[2]
    in_clone = installed / SOURCE_ROOTS[package]
    return in_clone if in_clone.is_dir() else installed


def search_current_folder() -> None:
    """Makes import_object also search the current folder, for trainers.

    Tools do not search it, as it may be a downloaded set. Nor does a training whose settings name no code.
    """
    folders_of_code[:] = [os.getcwd()]


def import_trainer(name: str) -> ModuleType:
    """Imports a module of a trainer, for tools that read its files. Shared code imports trainers only here.

    Raises:
        ImportError: the trainer or its framework is not installed.
        OSError: a shared library of the framework is missing.
    """
    root = str(trainer_root(name.partition(".")[0]))
    if root not in sys.path:
        sys.path.append(root)  # at the end, so that an installed trainer takes precedence
    return importlib.import_module(name)


def refuse_code(path: str, settings: Mapping[str, Any], *trusted: Mapping[str, Any]) -> None:
    """Refuses a settings file that names the user's code, because an import would run it.

    Args:
        path: path of the file.
        settings: the file's settings, without those that another source overrides.
        trusted: settings of other sources, whose objects are allowed.

    Raises:
        SettingsError: a setting names an object that is neither part of Partial FC nor trusted.
    """
    if Path(path).resolve().is_relative_to(EXAMPLES):
        return
    allowed = {name for source in trusted for _, name in code_in(source)}
    for setting, name in code_in(settings):
        if name not in allowed:
            raise SettingsError(
                f"{path} sets {setting} to {quoted(name)}, which would be imported and run: if you trust this code, "
                f"add {TRUST}, or set {setting} to the same value on the command line"
            )


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (setting, ``package.module:name``) for all objects in ``settings`` that are not part of Partial FC."""
    for setting, prefixes in OBJECT_SETTINGS.items():
        value = settings.get(setting)
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(name, str) and _names_object(name) and not (_is_ours(name) or name.startswith(prefixes)):
                yield setting, name


def import_object(text: str, setting: str, *kinds: type, by_function: bool = True) -> Any:
    """Imports the object ``package.module:name``.

    Args:
        text: name of the object.
        setting: name of the setting, for messages.
        kinds: base classes and Protocols. A class must derive from a base class, or have the methods of a
            Protocol.
        by_function: whether the object may also be a function, or another callable, that returns such an instance.

    Raises:
        ValueError: the name is malformed, the module cannot be imported or lacks the name, or the object is of a
            different kind.
    """
    check_object_name(text, setting)
    module_name, _, name = text.partition(":")
    if not _is_ours(module_name):
        sys.path += [folder for folder in folders_of_code if folder not in sys.path]  # installed modules come first
    where = "start in its folder" if folders_of_code else "install it"
    advice = f"; {where}, or add its folder to PYTHONPATH"
    with errors_of(f"{setting} is {text!r}, but {module_name} cannot be imported", advice):
        module = importlib.import_module(module_name)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise ValueError(f"{setting} is {text!r}, but {module_name} has no {name}")
        target = getattr(target, part)
    is_class = isinstance(target, type)
    if _is_ours(module_name):  # only our classes: settings must not call our imports, or functions that write files
        is_allowed = is_class and _is_ours(target.__module__)
    else:
        is_allowed = not _is_in_standard_library(target, module_name)
    is_kind = _is_of_kind(target if is_class else type(target), kinds)
    if not (is_allowed and (is_kind if is_class else by_function and (is_kind or callable(target)))):
        function = ", or a function" if by_function else ""
        raise ValueError(f"{setting} is {text!r}, which is {quoted(target)}: name {_described(kinds)}{function}")
    if module_name.partition(".")[0] != __name__.partition(".")[0]:
        named_modules.update((module_name, getattr(target, "__module__", module_name)))
    return target


def declared_keys(folder: str | os.PathLike, table: str) -> tuple[str, ...]:
    """Returns the keys of the dictionaries named ``table`` in the modules of a folder, in the order of the files.

    The sources are parsed rather than imported, as the modules may import packages that are not installed.
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


def _is_of_kind(cls: type, kinds: Iterable[type]) -> bool:
    """Returns whether a class derives from one of the kinds, or has the methods of one that is a Protocol."""
    return any(
        all(_has_method(cls, name, method) for name, method in declared.items())
        if (declared := _methods(kind)) is not None
        else issubclass(cls, kind)
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
    """Returns the methods that a Protocol declares; None for a class that is not a Protocol."""
    if not getattr(kind, "_is_protocol", False):
        return None
    members = vars(kind).items()  # includes members that typing adds
    return {name: each for name, each in members if inspect.isfunction(each) and each.__module__ == kind.__module__}


def _arguments(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)


def _has_method(cls: type, name: str, declared: Callable[..., Any]) -> bool:
    """Returns whether a class has a method with compatible arguments. Methods of its metaclass do not count."""
    method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    arguments = _arguments(declared)
    if isinstance(method, (staticmethod, classmethod)):
        method, arguments = getattr(cls, name), arguments[1:]
    try:
        inspect.signature(method).bind(*arguments)
    except ValueError:  # a function in C without a signature
        return True
    except TypeError:  # incompatible arguments, or not callable
        return False
    return True


def _names_object(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _is_ours(name: str) -> bool:
    return name.replace(":", ".").partition(".")[0] in PACKAGES


def _is_in_standard_library(target: Any, module: str) -> bool:
    """Returns whether an object belongs to the standard library, whose functions could do anything (``os:system``)."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isroutine(target) or isinstance(target, type):
        module = getattr(target, "__module__", None) or module
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_file = file.startswith(os.path.dirname(os.__file__) + os.sep) and not LIBRARIES & set(file.split(os.sep))
    return module in sys.builtin_module_names or is_file
