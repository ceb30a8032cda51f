"""Packages of the PyTorch trainer with planted faults."""

import importlib
import importlib.util
import itertools
import shutil
import sys
from pathlib import Path

COPIES = itertools.count()


def planted(folder, package, *changes):
    """Imports a copy of a package beside the original, whose other modules it uses.

    Args:
        folder: where the copy is written; does not exist.
        package: such as "partial_fc_torch.layer.kernels".
        changes: (file, old text, new text); the file contains the old text once.

    Returns:
        A function from the name of a module of the package to the module.
    """
    parent, _, original = package.rpartition(".")
    shutil.copytree(Path(importlib.import_module(parent).__path__[0], original), folder)
    for file, old, new in changes:
        text = (folder / file).read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        (folder / file).write_text(text.replace(old, new))
    name, file = f"{package}{next(COPIES)}", folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return lambda module: importlib.import_module(f"{name}.{module}")
