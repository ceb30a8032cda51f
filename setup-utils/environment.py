"""The environments in the clone, for the checks of the installation. Needs only the standard library."""

import os
import subprocess
from typing import NamedTuple

from partial_fc.utils.check_rows import Row

CLONE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Environment(NamedTuple):
    """A virtual environment of the clone."""

    name: str  # its folder in the clone
    install: str  # command that installs it

    @property
    def path(self) -> str:
        return os.path.join(CLONE, self.name)

    @property
    def interpreter(self) -> str:
        return os.path.join(self.path, "bin", "python")

    @property
    def rebuild(self) -> str:
        return f"rm -rf {self.name} && {self.install}"

    def exists(self) -> bool:
        return os.path.exists(self.interpreter)

    def recorded(self, name: str) -> str:
        """Returns the content of a file that the installation wrote; empty if there is none."""
        try:
            with open(os.path.join(self.path, ".partial_fc", name)) as stream:
                return stream.read()
        except OSError:
            return ""

    def python(self, code: str) -> tuple[int, str]:
        return run(self.interpreter, "-c", code)

    def check_packages(self, title: str, imports: str, writer: str) -> Row:
        """Checks the packages of both trainers, and ``imports``. ``writer`` is the package for TensorBoard."""
        code, text = self.python(
            f"import cv2, easydict, matplotlib, numpy, onnx, onnxruntime, tqdm, {imports};"
            "from importlib.metadata import version as v;"
            f"names = 'numpy opencv-python-headless onnx {writer} matplotlib protobuf'.split();"
            # The package may also be onnxruntime-gpu, with the same module.
            "print(', '.join(f'{name} {v(name)}' for name in names) + f', onnxruntime {onnxruntime.__version__}')"
        )
        if code:
            return Row("bad", title, f"an import fails: {last_line(text)}", self.rebuild)
        return Row("ok", title, last_line(text))

    def check(self) -> Row:
        if not self.exists():
            return Row("bad", self.name, "missing", self.install)
        if not self.recorded("place"):
            return Row(
                "bad", self.name, f"not made by {self.install.split()[-1]}", f"move it away, then {self.install}"
            )
        if self.recorded("place").strip() != CLONE:
            return Row("bad", self.name, f"the clone was moved; a {self.name} holds absolute paths", self.install)
        if not self.recorded("ready"):
            return Row("bad", self.name, "its installation did not finish", self.install)
        return Row("ok", self.name, self.path)


MXNET = Environment(".venv", "bash setup-utils/install.sh")
TORCH = Environment(".venv-torch", "bash setup-utils/install-torch.sh")


def run(*command: str, seconds: int = 60) -> tuple[int, str]:
    """Returns exit code and output of a child process, run outside the clone, whose folder mxnet/ would be imported."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def last_line(text: str) -> str:
    return text.splitlines()[-1] if text else "no output"
