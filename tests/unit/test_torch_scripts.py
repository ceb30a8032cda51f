"""The environment of the PyTorch trainer: what its installation and its checks report."""

import os
import re
import shutil
import subprocess
import sys

import cuda
import pytest

from paths import ROOT


@pytest.fixture
def clone(tmp_path):
    """A clone with nothing installed."""
    for folder in ("setup-utils", "partial_fc"):
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirement.txt", tmp_path / "clone")
    return tmp_path / "clone"


def bash(script, *arguments, **variables):
    """Runs a script without the variables of the caller, such as those of pip."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    command = ["bash", str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_unsupported_python_is_rejected(clone):
    done = bash(clone / "setup-utils" / "install-torch.sh", PYTHON="/bin/false")
    assert done.returncode != 0
    assert "PYTHON=/bin/false is not a 64-bit CPython 3.10 to 3.14" in done.stderr


@pytest.mark.slow  # it makes an environment
@pytest.mark.skipif(bool(cuda.probe_gpus()[0]), reason="a CPU build is chosen where there is no GPU")
def test_the_newest_cpu_build_of_the_index_is_chosen(clone, tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    for version in ("9.8.0+cpu", "9.9.0", "9.7.1+cpu", "9.9.0+cu130"):
        (index / f"torch-{version}-py3-none-any.whl").write_text("no wheel")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PYTHON": sys.executable}
    done = bash(clone / "setup-utils" / "install-torch.sh", **pip)
    assert done.returncode != 0
    assert "PyTorch: torch==9.8.0+cpu (no NVIDIA GPU" in done.stdout
    assert '"PyTorch" failed' in done.stderr and "bash setup-utils/install-torch.sh again" in done.stderr
    assert (clone / ".venv-torch" / "install.log").exists() and not (clone / ".venv").exists()


def test_one_environment_is_enough(clone):
    """Without .venv the check names its command and passes it over; an error in .venv-torch stays one."""
    venv = clone / ".venv-torch"
    (venv / "bin").mkdir(parents=True)
    (venv / ".partial_fc").mkdir()
    (venv / "bin" / "python").write_text("#!/bin/sh\necho 'ImportError: no torch'\nexit 1\n")
    (venv / "bin" / "python").chmod(0o755)
    (venv / ".partial_fc" / "place").write_text(f"{clone}\n")
    (venv / ".partial_fc" / "ready").write_text("key\n")
    done = bash(clone / "setup-utils" / "check.sh", PYTHON=sys.executable)
    assert done.returncode == 1, done.stderr
    assert re.search(r"\[warn\] +\.venv +missing: only .* MXNet\n +-> bash setup-utils/install\.sh", done.stdout)
    assert re.search(r"\[ok\] +\.venv-torch ", done.stdout)
    assert "does not import: ImportError: no torch\n" in done.stdout
    assert "Needs fixing: PyTorch\n" in done.stdout and "compiler" not in done.stdout
