"""Runs the trainings that the studies in this folder compare, one process per training."""

import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
TORCH = str(CLONE / ".venv-torch" / "bin" / "python")


def train(output: Path, *words: str, python: str = sys.executable, cwd: Path | None = CLONE) -> None:
    """Runs train.py with these words, unless a training in the folder ``output`` has finished; the log is beside it."""
    if not (output / "summary.json").exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{output}.log", "w") as log:
            command = [python, str(CLONE / "train.py"), *words, f"output={output}"]
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=cwd)
