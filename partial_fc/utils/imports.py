"""Objects that a setting names: those of users as ``package.module:name``, and ours in the modules of a folder."""

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .text import quoted
from .user_code import errors_of, named_modules

# Source roots of the trainers in a clone. Environments that setup-utils has made contain them, those of users do not.
SOURCE_ROOTS = {"partial_fc_torch": "pytorch", "partial_fc_mxnet": "mxnet"}


def check_object_name(text: str, setting: str) -> None:
    """Raises ValueError, which names the setting, if a text is not of the form ``package.module:name``."""
    module, colon, name = text.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))):
        raise ValueError(f"{setting} is {quoted(text)}, but must be a known name or package.module:name")


def import_trainer(name: str) -> ModuleType:
    """Returns a module of a trainer, which this package must not import: tools load it for files of that trainer alone.

    Raises ImportError if it, or the framework, is not installed, and OSError if a library of the framework is missing.
    """
    root = str(Path(__file__).parents[2] / SOURCE_ROOTS[name.partition(".")[0]])
    if root not in sys.path:
        sys.path.append(root)  # last: an installed trainer wins
    return importlib.import_module(name)


def import_object(text: str, setting: str) -> Any:
    """Returns the object that ``package.module:name`` names; its module is imported.

    Raises:
        ValueError: the text has another form, the module cannot be imported, or does not have the name.
    """
    check_object_name(text, setting)
    module_name, _, name = text.partition(":")
    advice = "; put it beside the program, install it, or add its folder to PYTHONPATH"
    with errors_of(f"{setting} is {text!r}, but {module_name} cannot be imported", advice):
        found = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{setting} is {text!r}, but {module_name} has no {name}")
        found = getattr(found, part)
    if module_name.partition(".")[0] != __name__.partition(".")[0]:
        named_modules.update((module_name, getattr(found, "__module__", module_name)))
    return found


def declared_keys(folder: str, table: str) -> tuple[str, ...]:
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
