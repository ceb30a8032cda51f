"""Where the repository lies, for tests in any folder."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(
    (str(ROOT), str(ROOT / "mxnet"), str(ROOT / "pytorch"))
)  # PYTHONPATH of programs that tests start
