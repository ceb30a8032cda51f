"""Where the repository lies, for tests in any folder."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# PYTHONPATH of programs that tests start
SOURCES = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "mxnet", ROOT / "pytorch", ROOT / "tools"))


def with_root():
    """The environment of a Python program in any folder that imports what lies in the root."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
