"""The installation, as far as it can be tested in seconds without installing. tests/run.sh itself tests an install."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cuda
import pytest
from packaging.requirements import Requirement

from paths import ROOT
from stub_driver import stub_driver

SETUP = ROOT / "setup-utils"

# The tools that the scripts use before they search for a compiler.
BASIC_TOOLS = "bash dirname uname ldd grep cat sed sha256sum flock mkdir ls rm id env apt-get".split()


@pytest.fixture
def clone(tmp_path):
    """A clone with nothing installed."""
    for folder in ("setup-utils", "partial_fc"):
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirement.txt", tmp_path / "clone")
    return tmp_path / "clone"


def bash(*command, **variables):
    """Runs bash in a clean environment: no PYTHON, CC or virtual environment of the caller."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(["bash", *map(str, command)], env=environment, capture_output=True, text=True, timeout=800)


@pytest.fixture
def bare_path(tmp_path):
    """A PATH with only the basic tools: no compiler, no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for path in filter(None, map(shutil.which, BASIC_TOOLS)):
        (folder / Path(path).name).symlink_to(path)
    return folder


@pytest.mark.parametrize(
    "compilers, words, message",
    [
        ([], "", "C++ compiler and make; missing: C g++ make"),
        (["cc", "gcc", "g++", "make"], "", "no Python 3.10 to 3.13 was found"),
        (["cc", "gcc", "g++", "make"], "--devel", '"--devel"'),
    ],
)
def test_what_an_installation_lacks_is_reported(clone, bare_path, compilers, words, message):
    for tool in compilers:
        (bare_path / tool).symlink_to("/bin/true")
    done = bash(clone / "setup-utils" / "install.sh", *words.split(), PATH=str(bare_path))
    assert done.returncode != 0 and message in done.stderr


@pytest.mark.parametrize("script, newest", [("install.sh", 13), ("install-torch.sh", 14)])
def test_an_unsupported_python_is_rejected(clone, script, newest):
    done = bash(clone / "setup-utils" / script, PYTHON="/bin/false")
    assert done.returncode != 0 and f"/bin/false is not a 64-bit CPython 3.10 to 3.{newest}" in done.stderr


def test_a_path_with_a_space_and_the_venv_of_another_tool_are_rejected(clone):
    (clone / ".venv").mkdir()
    (clone / ".venv" / "precious").write_text("kept")
    done = bash(clone / "setup-utils" / "install.sh")
    assert done.returncode != 0 and "was not made by this script" in done.stderr
    assert (clone / ".venv" / "precious").read_text() == "kept"
    spaced = clone.rename(clone.parent / "my clone")
    done = bash(spaced / "setup-utils" / "install.sh")
    assert done.returncode != 0 and "has a space" in done.stderr


def test_a_phase_that_fails_runs_again_and_one_that_finished_does_not(clone, tmp_path):
    program = """
        . "$1/setup-utils/common.sh"
        mkdir -p "$STATE"
        work() { echo run >>"$LOG"; [ -e "$1" ]; }
        phase packages key work "$2"
        phase packages key work "$2"
    """
    codes = [bash("-c", f"set -e\n{program}", "-", clone, path).returncode for path in (tmp_path / "no", tmp_path)]
    assert codes[0] != 0 and codes[1] == 0
    assert (clone / ".venv" / "install.log").read_text() == "run\nrun\n"


def test_a_link_to_the_venv_of_another_clone_is_kept(clone, tmp_path):
    state = tmp_path / "other" / ".venv" / ".partial_fc"
    state.mkdir(parents=True)
    (state / "place").write_text("/other\n")
    (clone / ".venv").symlink_to(state.parent)
    done = bash(clone / "setup-utils" / "install.sh")
    assert done.returncode == 1 and "is a link to the environment of another clone: remove the link" in done.stderr
    assert (clone / ".venv").is_symlink() and (state / "place").exists()


def test_the_command_finds_modules_of_pythonpath_and_none_of_the_current_folder(tmp_path):
    for name in ("bin", "state", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "own" / "mine.py").write_text("def item(text): raise ValueError(text)")
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    lines = f". '{SETUP}/venv.sh'; VENV='{tmp_path}' STATE='{tmp_path}/state'; write_command"
    subprocess.run(["bash", "-c", lines], check=True)
    command = [tmp_path / "bin" / "partial-fc", "compare", "a", "b", "--model", "missing", "--reader", "mine:item"]
    for folders, message in (
        (ROOT, "mine cannot be imported"),
        (f"{ROOT}:{tmp_path / 'own'}", "missing does not exist"),
    ):
        environment = {**os.environ, "PYTHONPATH": str(folders)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.parametrize("venv, script", [(".venv", "install.sh"), (".venv-torch", "install-torch.sh")])
def test_second_install_is_quick(venv, script):
    ready = ROOT / venv / ".partial_fc" / "ready"
    sources = [path for path in SETUP.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if not ready.exists() or any(path.stat().st_mtime > ready.stat().st_mtime for path in sources):
        pytest.skip("no install of these very scripts here")
    began = time.perf_counter()
    done = bash(SETUP / script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "script, changed",
    [
        ("install.sh", "setup-utils/requirements/training.txt"),
        ("install-torch.sh", "requirement.txt"),
        ("install-torch.sh", "setup-utils/requirements/dev.txt"),
    ],
)
def test_a_change_of_the_required_packages_installs_again(clone, script, changed):
    path = clone / "setup-utils" / script
    path.write_text(path.read_text().replace('\ninstall "$@"\n', "\ncurrent_key\n"))
    keys = [bash(path).stdout, bash(path).stdout]
    with open(clone / changed, "a") as file:
        file.write("numpy>=9\n")
    keys.append(bash(path).stdout)
    assert keys[0].startswith(f"{clone} ") and keys[0] == keys[1] != keys[2]


def fake_venv(clone, mpi_bin="", wheel="mxnet"):
    """The parts of a .venv that env.sh reads."""
    state = clone / ".venv" / ".partial_fc"
    state.mkdir(parents=True)
    (clone / ".venv" / "bin").mkdir()
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (state / "mpi.env").write_text(f"PFC_MPI_BIN='{mpi_bin}'\nPFC_MPI_LIB='{mpi_bin and mpi_bin + '/libmpi.so'}'\n")
    (state / "cuda.env").write_text(f"PFC_WHEEL={wheel}\nPFC_CUDA_LIBRARY_PATH=''\n")


def source_env(clone, times=1, **variables):
    """The variables after sourcing env.sh, from another folder and under `set -eu`."""
    line = "set -eu; cd /; " + f". '{clone}/setup-utils/env.sh'; " * times + "env"
    done = bash("-c", line, **variables)
    assert done.returncode == 0, done.stderr
    return dict(entry.split("=", 1) for entry in done.stdout.splitlines() if "=" in entry)


def test_env_with_the_wheels_mpi(clone):
    fake_venv(clone)
    once, twice = source_env(clone), source_env(clone, times=2)
    assert once["PATH"].split(":")[0] == str(clone / ".venv" / "bin")
    assert once["OPAL_PREFIX"] == once["VIRTUAL_ENV"] == str(clone / ".venv")
    assert "MPI4PY_LIBMPI" not in once and "LD_LIBRARY_PATH" not in once
    assert once["OMPI_MCA_mpi_yield_when_idle"] == "1" and once["OMPI_MCA_hwloc_base_binding_policy"] == "none"
    assert source_env(clone, OMPI_MCA_hwloc_base_binding_policy="core")["OMPI_MCA_hwloc_base_binding_policy"] == "core"
    assert once["PATH"] == twice["PATH"]


def test_env_with_an_installed_mpi_and_cuda(clone):
    fake_venv(clone, mpi_bin="/opt/mpi/bin", wheel="mxnet-cu112")
    variables = source_env(clone)
    assert variables["PATH"].split(":")[:2] == [str(clone / ".venv" / "bin"), "/opt/mpi/bin"]
    assert "OPAL_PREFIX" not in variables and "OMPI_MCA_mpi_yield_when_idle" not in variables
    assert variables["MPI4PY_LIBMPI"] == "/opt/mpi/bin/libmpi.so"


def test_env_without_ssh_disables_the_ssh_launcher(clone, bare_path):
    fake_venv(clone)
    assert source_env(clone, PATH=str(bare_path))["OMPI_MCA_plm"] == "^rsh"
    (bare_path / "ssh").symlink_to("/bin/true")
    assert "OMPI_MCA_plm" not in source_env(clone, PATH=str(bare_path))


def test_without_a_finished_venv_the_installer_is_named(clone):
    done = bash("-c", f"set -eu; . '{clone}/setup-utils/env.sh'; echo reached")
    assert done.returncode != 0 and "reached" not in done.stdout
    assert f"bash {clone}/setup-utils/install.sh" in done.stderr
    done = bash(clone / "setup-utils" / "check.sh", PYTHON=sys.executable)
    assert done.returncode == 1, done.stderr
    assert re.search(r"\[bad\] +\.venv +missing\n +-> bash setup-utils/install\.sh", done.stdout)
    fake_venv(clone)
    done = bash(clone / "setup-utils" / "check.sh")
    assert done.returncode == 1, done.stderr
    assert re.search(r"\[bad\] +\.venv +not made by setup-utils/install\.sh\n +-> move it away", done.stdout)


@pytest.mark.skipif(not shutil.which("linux32"), reason="another processor's name comes from util-linux")
def test_other_processors_are_for_pytorch(clone):
    """As on aarch64: MXNet's installer recommends the other trainer, and the check does not need MXNet."""
    program = 'linux32 bash "$1/setup-utils/install.sh"; linux32 bash "$1/setup-utils/check.sh"'
    done = bash("-c", program, "-", clone, PYTHON=sys.executable)
    assert "bash pytorch/run.sh" in done.stderr and not (clone / ".venv").exists()
    assert re.search(r"\[bad\] +\.venv-torch +missing\n", done.stdout) and ".venv " not in done.stdout


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_package_has_one_exact_pin(version):
    lines = (SETUP / "requirements" / "training.txt").read_text().splitlines()
    entries = [Requirement(line.split("#")[0]) for line in lines if line and line[0] != "#"]
    pins = [entry for entry in entries if not entry.marker or entry.marker.evaluate({"python_version": version})]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins), pins
    names = {pin.name.lower() for pin in pins}
    assert len(names) == len(pins) and names >= {"numpy", "protobuf", "onnx"}


A100, H200, V100 = ((8, 0), "A100"), ((9, 0), "H200"), ((7, 0), "V100")
CU112, CU101 = cuda.WHEELS


def machine(gpu, wheel, driver=12040, without=()):
    """A machine with one GPU and everything that a wheel needs except for some libraries."""
    libraries = {name: "/usr/local/cuda/lib64" for name in wheel.libraries if name not in without}
    return cuda.Machine([gpu[0]], [gpu[1]], driver, libraries, {wheel.toolkit: "/usr/local/cuda"}, "/usr")


@pytest.mark.parametrize(
    "found, wheel, reason",
    [
        (cuda.Machine([], [], 0, {}, {}, None), "mxnet", "no NVIDIA GPU"),
        (machine(A100, CU112), "mxnet-cu112", "A100"),
        (machine(V100, CU112), "mxnet-cu112", "V100"),
        (machine(V100, CU101), "mxnet-cu101", "V100"),
        (machine(A100, CU101), "mxnet", "libcudart.so.11.0"),
        (machine(H200, CU112), "mxnet", "not 9.0"),
        (machine(A100, CU112, without=["libcudnn.so.8"]), "mxnet", "needs libcudnn.so.8"),
        (machine(A100, CU112, driver=11000), "mxnet", "driver for CUDA 11.2"),
        (machine(A100, CU112)._replace(toolkits={}), "mxnet", "nvcc of CUDA 11"),
    ],
)
def test_choice_of_the_wheel(found, wheel, reason):
    choice = cuda.choose(found)
    assert choice.wheel == wheel
    assert reason in choice.reason
    assert (choice.cuda_library_path == "/usr/local/cuda/lib64") == (wheel != "mxnet")


def test_a_requested_wheel_needs_its_libraries_but_no_gpu():
    """An image is built on a machine without a GPU: MXNET_WHEEL names the wheel."""
    found = machine(A100, CU112)._replace(capabilities=[], names=[], driver=0)
    assert cuda.choose(found).wheel == "mxnet"
    choice = cuda.choose_requested("mxnet-cu112", found)
    assert (choice.wheel, choice.cuda_home, choice.nccl_home) == ("mxnet-cu112", "/usr/local/cuda", "/usr")
    with pytest.raises(ValueError, match="libcudnn.so.8"):
        cuda.choose_requested("mxnet-cu112", machine(A100, CU112, without=("libcudnn.so.8",)))
    with pytest.raises(ValueError, match="expected one of mxnet, mxnet-cu112, mxnet-cu101"):
        cuda.choose_requested("mxnet-cu113", found)


def test_shims_run_when_mxnet_is_imported_and_once(tmp_path):
    """A start imports nothing, a second import adds no second finder, and MXNet's import runs its shim."""
    (tmp_path / "mxnet.py").write_text("import numpy\nassert hasattr(numpy, 'bool')\n")
    program = (
        "import sys, importlib, stack_shims; assert 'numpy' not in sys.modules;"
        "importlib.reload(stack_shims);"
        "assert [getattr(f, '__name__', '') for f in sys.meta_path].count('ShimFinder') == 1;"
        "finder = sys.meta_path[0]; assert 'mxnet' in finder.shims;"
        "import mxnet; assert 'numpy' in sys.modules and 'mxnet' not in finder.shims"
    )
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}:{SETUP}"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["run.sh", "pytorch/run.sh", "tests/run.sh"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_explains_and_installs_nothing(script, option, tmp_path):
    for name in (script, "setup-utils/help.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    words = [] if script == "tests/run.sh" else ["--dataset", "demo"]
    done = subprocess.run(["bash", script, *words, option], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "") and sorted(tmp_path.rglob("*")) == before
    assert f"bash {script}" in done.stdout and "#" not in done.stdout.splitlines()[0]
    if script != "tests/run.sh":
        assert done.stdout.endswith("\n\nThe first call installs what is needed; all settings are in default.py.\n")


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
    done = bash(clone / "setup-utils" / "install-torch.sh", TORCH="torch==9.7.1+cpu", **pip)
    assert "PyTorch: torch==9.7.1+cpu (named by TORCH)" in done.stdout


@pytest.mark.slow  # it makes an environment
def test_the_build_for_gpus_is_chosen_by_the_driver(clone, tmp_path):
    """The name of the build is printed; without an index, its installation fails."""
    for driver, chosen in ((12040, "torch --index-url https://download.*/cu126"), (13000, "torch")):
        library = stub_driver(tmp_path, 8, driver)
        done = bash(
            clone / "setup-utils" / "install-torch.sh", LD_LIBRARY_PATH=library, PIP_NO_INDEX="1", PYTHON=sys.executable
        )
        assert re.search(rf"PyTorch: {chosen} \(for this machine's GPU", done.stdout), done.stdout + done.stderr


def test_one_environment_is_enough(clone):
    """A missing .venv is only a warning, but an error in .venv-torch is reported."""
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


# A script like run.sh and pytorch/run.sh, whose job writes to both outputs while their readers end.
JOB = """
set -euo pipefail
. "$1/setup-utils/job.sh"
run_job bash -c 'for i in 1 2 3 4 5 6; do echo "line $i"; echo "error $i" >&2; sleep 0.1; done; exec >"$0"
    cat "$PARTIAL_FC_OUTPUT_LOST"; exit 7' "$2"
printf 'run.sh: more\\n'
exit "$code"
"""


@pytest.mark.parametrize(
    "redirection, reason",
    [
        ("2>&1 | head -2", "Broken pipe"),
        (">/dev/full", "No space left on device"),
        ("<&- >&-", "Bad file descriptor"),
        ("2>&-", "Bad file descriptor"),
        ("| cat", ""),
    ],
)
def test_a_job_goes_on_when_nobody_reads_it(redirection, reason, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = f'set -o pipefail; bash -c "$0" run.sh "$1" "$2" {redirection}'
    done = bash("-c", command, JOB, ROOT, tmp_path / "out", TMPDIR=str(temporary))
    assert done.returncode == 7, done.stderr
    lines = (tmp_path / "out").read_text().splitlines()
    assert set(lines) == {reason and f"cat: write error: {reason}"} - {""}
    assert reason or "line 6\nrun.sh: more\n" in done.stdout
    assert list(temporary.iterdir()) == []


def test_a_second_restart_uses_all_hosts_again():
    """Each answer is the exit code of the check, the usable hosts and their ranks; the first restart has one host."""
    script = """
    PFC_ROOT=$0
    . "$PFC_ROOT/setup-utils/hosts.sh"
    answers=("0 a:2,b:3 5" "1 a:2 2" "0 a:2,b:3 5")
    check_hosts() {
        read -r answer PFC_USABLE PFC_RANKS <<<"${answers[0]}"
        answers=("${answers[@]:1}")
        return "$answer"
    }
    HOSTS=a:2,b:3 MIN_HOSTS=1 INTERFACE='' NP=''
    choose_hosts
    echo "$NP ${hosts[*]}"
    for restart in 1 2; do
        choose_hosts_again
        echo "$NP ${hosts[*]}"
    done
    """
    done = bash("-c", script, ROOT)
    assert done.stdout.splitlines() == ["5 -host a:2,b:3", "2 -host a:2", "5 -host a:2,b:3"], done.stderr
