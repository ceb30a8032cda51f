"""A configuration file of arcface_torch: a Python file whose ``config`` maps keys to values."""

import difflib
import os
import runpy
from collections.abc import Mapping
from typing import Any, NamedTuple

from partial_fc.utils.user_code import errors_of


class Recipe(NamedTuple):
    """The content of a configuration file."""

    name: str  # of the file, without its ending
    config: dict[str, Any]  # its keys and values


def read_recipe(path: str, root: str) -> Recipe:
    """Runs a configuration file; its path, with or without ``.py``, starts at the current folder or at ``root``.

    Raises ValueError if there is no such file, it fails, or it has no ``config``.
    """
    file = find_file(path, root)
    with errors_of(f"{file} failed"):
        config = runpy.run_path(file).get("config")
    if not isinstance(config, Mapping):
        raise ValueError(f"{file} has no dictionary 'config'; an EasyDict is one")
    return Recipe(os.path.splitext(os.path.basename(file))[0], dict(config))


def find_file(path: str, root: str) -> str:
    """Returns the path of the configuration file; for the arguments and errors see `read_recipe`."""
    name = path if path.endswith(".py") else f"{path}.py"
    for candidate in (name, os.path.join(root, name)):
        if os.path.isfile(candidate):
            return candidate
    recipes = os.path.join(root, "configs")  # of a clone; the installed package has none
    known = (
        [os.path.splitext(entry)[0] for entry in sorted(os.listdir(recipes)) if entry != "sets.py"]
        if os.path.isdir(recipes)
        else []
    )
    near = difflib.get_close_matches(os.path.splitext(os.path.basename(name))[0], known, n=1, cutoff=0.0)
    hint = f"did you mean configs/{near[0]}? All recipes are in {recipes}" if near else "give the path of a file"
    raise ValueError(f"there is no {name}: {hint}")
