"""Paths of the repository, for tests in any folder."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# PYTHONPATH of programs that tests start.
SOURCES = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "mxnet", ROOT / "pytorch", ROOT / "tools"))


def with_root():
    """Returns an environment in which a Python program in any folder imports from the repository."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
