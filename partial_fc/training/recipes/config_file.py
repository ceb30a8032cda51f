"""Reads recipes: ours in table.py, and arcface_torch's Python files, whose ``config`` maps keys to values."""

import difflib
import os
import runpy
from collections.abc import Mapping
from typing import Any, NamedTuple

from partial_fc.utils.user_code import errors_of

from .table import RECIPES


class Recipe(NamedTuple):
    """The content of a configuration."""

    name: str  # name of the file, without its ending
    config: dict[str, Any]  # keys and values


def read_recipe(path: str) -> Recipe:
    """Runs the file ``path``, given with or without ``.py``; if it does not exist, its name may be a key of RECIPES.

    Raises ValueError if there is neither, the file fails, or it has no ``config``.
    """
    name, _ = os.path.splitext(os.path.basename(path))
    file = path if path.endswith(".py") else f"{path}.py"
    if not os.path.isfile(file):
        if os.path.dirname(path) not in ("", "configs"):
            raise ValueError(f"there is no {file}")
        return our_recipe(name)
    with errors_of(f"{file} failed"):
        config = runpy.run_path(file).get("config")
    if not isinstance(config, Mapping):
        raise ValueError(f"{file} has no dictionary 'config'; an EasyDict is one")
    return Recipe(name, dict(config))


def our_recipe(name: str) -> Recipe:
    """Returns the recipe of this name in RECIPES, or raises ValueError."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.0)
        raise ValueError(
            f"there is no recipe {name!r}: give the path of a file, or one of our recipes, such as configs/{near[0]}"
        )
    return Recipe(name, dict(RECIPES[name]))
