"""No code in the current folder runs, as this may be a downloaded set."""

import os
import subprocess
import sys

import pytest

from partial_fc.data.synthetic.dataset import DemoSize, write_demo
from paths import ROOT, with_root

PLANTED = (
    "signal",
    "socket",
    "json",
    "venv",
    "platform",
    "cuda",
    "numpy",
    "partial_fc",
    "sysconfig",
    "sitecustomize",
    "strokes",
    "easydict",
    "tqdm",
)
# The script that pip writes for [project.scripts].
COMMAND = "import sys\nfrom partial_fc_tools.__main__ import run\nif __name__ == '__main__':\n    sys.exit(run())\n"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A current folder with modules that write the file `ran`."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(folder)
    yield folder
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_worker_processes(hostile, tmp_path):
    drawn = tmp_path / "drawn"
    write_demo(drawn, DemoSize(identities=40, images_per_identity=4, held_out=20, pairs=40), workers=2)
    command = tmp_path / "partial-fc"
    command.write_text(COMMAND)
    arguments = [sys.executable, command, "sets", "check", str(drawn), "--workers", "2"]
    done = subprocess.run(arguments, env=with_root(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tools_do_not_search_it_for_the_users_modules(hostile):
    words = ["sets", "align", "photos", "faces", "--detector", "strokes:Detector"]
    for program in ([ROOT / "partial_fc" / "__main__.py"], ["-m", "partial_fc"]):
        done = start(hostile, *program, *words)
        assert done.returncode == 2 and "strokes cannot be imported" in done.stderr, done.stderr


def test_a_training_started_as_a_module(hostile):
    done = start(hostile, "-m", "partial_fc.train", "--print-config")
    assert done.returncode == 0, done.stderr


def start(folder, *words):
    """Runs Python, which finds partial_fc in the clone as if it were installed: `-m` searches the folder first."""
    for name in ("partial_fc", *sys.stdlib_module_names):  # which no program that `-m` runs can avoid
        (folder / f"{name}.py").unlink(missing_ok=True)
    return subprocess.run([sys.executable, *words], env=with_root(), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "line",
    [
        ". $ROOT/setup-utils/venv.sh; PYTHON=python3; usable_python python3; other_python_requested; find_python",
        "PFC_ROOT=$ROOT; . $ROOT/setup-utils/hosts.sh; INTERFACE=lo HOSTFILE= HOSTS= choose_hosts",
    ],
)
def test_scripts(hostile, line):
    environment = {**os.environ, "ROOT": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
    assert "Error" not in done.stderr, done.stderr
