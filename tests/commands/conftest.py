"""Fixtures that run the users' commands, each in its own process, on a set that trains in seconds."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import in_turn
from partial_fc.data.synthetic import DemoSize, write_demo
from paths import ROOT
from virtual_hosts import Hosts, unavailable
from waiting import happens

# A shell's background job ignores Ctrl-C, and so would everything that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
CLASSES = 20
LIMIT = 800  # seconds after which a command counts as hung: it is killed, and its test fails
VERIFIED = ["val_targets=['demo_val']", "baselines=True", "verify_every=4"]  # settings
TORCH = ROOT / ".venv-torch" / "bin"
# PyTorch ranks without a launcher: `run` forks them from a server process that has imported PyTorch.
IN_TURN = [TORCH / "python", "tests/in_turn.py"]
needs_torch = pytest.mark.skipif(not TORCH.exists(), reason="no .venv-torch (install-torch.sh makes it)")
NO_HOSTS = unavailable()
needs_hosts = pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "-")


# Files with the longest slow tests, longest first: processes of pytest-xdist start with them.
LONG = "walkthroughs between_trainers resume odd_machines restarts slurm"
LONG = {f"test_{name}.py": place for place, name in enumerate(LONG.split())}


# Tests that only `bash tests/run.sh --all` runs: file -> parts of test names; "" selects all of a file. For each,
# .ci/run has a similar test with another launcher, trainer or fault, or tests of the same code in one process.
THOROUGH = {
    "between_trainers": ["mxnet-torch"],
    "check_hosts": ["without_the_clone", "only_starts", "firewall", "shell_that", "do_not_answer", "arguments"],
    "demo_collapse": [""],
    "faults": ["gloo-0-evaluation", "torchrun-0-", "MPI-0-save", "mpi-0-results", "traceback[mpi", "cannot_be_read"]
    + ["others[gloo-hang", "others[torchrun-leave", "broken_settings", "other_code", "[half a file"],
    "glyphs_experiment": [""],
    "hosts": ["Gloo", "others_continue", "lost_link", "too_late", "another_host", "sshd", "restart", "short_failure"]
    + ["shared_folder"],
    "io_profile": ["one_line[python"],
    "launchers": ["[pytorch/run.sh", "[horovodrun"],
    "manifests": [""],
    "models_script": ["words", "glyphs"],
    "odd_machines": ["folder[run.sh", "twenty_moments"],
    "own_task_commands": ["is_measured", "killed"],
    "package": ["every_command"],
    "planner_check": [""],
    "preemption": ["saved[horovodrun", "during", "end[run.sh-bash", "end[torchrun", "end[horovodrun", "all[torchrun"]
    + ["all[horovodrun", "goes_on[run.sh"],
    "restarts": ["training[pytorch/run.sh", "killed_mpirun", "soak", "same_port"],
    "resume": ["three_ranks"],
    "pytorch_run": ["start[10-75"],
    "run_sh": ["named[pytorch/run.sh", "reach_other_hosts"],
    "slurm": [""],
    "speakers_example": [""],
    "torch_hosts": ["tutorials", "elastic"],
    "torch_loops": ["three_processes"],
    "torch_training": ["arcface_torch"],
    "training_commands": ["suggests"],
    "walkthroughs": ["quick_start", "the_tutorial", "test_fine_tuning"],
    "words_experiment": [""],
}


def is_thorough(item):
    """Returns whether only --all runs a test."""
    return any(part in item.name for part in THOROUGH.get(item.path.stem.removeprefix("test_"), ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Marks the tests of this folder, and lets each xdist process start with long tests, lest the last run alone."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("commands")
            if is_thorough(item):
                item.add_marker("thorough")
            if is_thorough(item) or item.get_closest_marker("timed"):
                item.add_marker("slow")
    yield  # pytest removes the tests that -m does not select
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = sorted((item for item in items if item.path.name in LONG), key=lambda item: LONG[item.path.name])
    rest = [item for item in items if item.path.name not in LONG]
    size = -(-len(rest) // processes)
    items[:] = []
    for number in range(processes):
        items += [*long[number::processes], *rest[number * size : (number + 1) * size]]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Returns make(name, write) -> folder, which one of pytest's processes writes while the others wait for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def make(name, write):
        folder, part = shared / name, shared / f"{name}.part"
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                write(part)
                part.rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def faces(tmp_path_factory):
    """Path of a train.rec with 8 images of each of 20 identities; its folder also has 40 validation pairs.

    Each of pytest's processes has its own set: tests count and kill the ranks with this path in their command line.
    """
    root = tmp_path_factory.mktemp("data") / "faces"
    write_demo(root, DemoSize(seed=1, identities=CLASSES, images_per_identity=8, held_out=20, pairs=40))
    return root / "train.rec"


@pytest.fixture
def settings(faces, tmp_path):
    """Command-line settings: the small set, a few small steps without verification, the test's own output folder."""
    return [
        "dataset=demo",
        f"rec={faces}",
        f"models_root={tmp_path / 'models'}",
        f"num_classes={CLASSES}",
        "batch_size=8",
        "max_update=7",
        "lr_steps=[5]",
        "frequent=2",
        "verify_every=100",
        "save_every=5",
        "val_targets=[]",
        "baselines=False",
    ]


@pytest.fixture(scope="session")
def fork_server(made_once):
    """Returns the socket of a server that has imported PyTorch; all of pytest's processes share the server."""

    def start(folder):
        folder.mkdir()
        first = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        # Not in the folder, whose path may be too long for a socket.
        socket = Path(tempfile.mkdtemp()) / "socket"
        (folder / "socket").symlink_to(socket)
        command = [*IN_TURN, "--serve", socket, first]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with open(folder / "log", "w") as log:
            subprocess.Popen(list(map(str, command)), cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
        assert happens(socket.exists, LIMIT), (folder / "log").read_text()

    return lambda: os.readlink(made_once("fork-server", start) / "socket")


@pytest.fixture
def run(fork_server):
    """Runs a command in the clone and returns its CompletedProcess.

    With one thread per rank, because the threads of several tests at once would busy-wait for each other.
    """

    def run_command(*command, timeout=LIMIT, **environment):
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        words = [str(word) for word in command]
        try:
            if list(command[:2]) == IN_TURN:
                return in_turn.ask(fork_server(), words[2:], ROOT, env, timeout)
            return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as late:  # its message does not have the output
            raise AssertionError(f"{late}\n{late.stdout}\n{late.stderr}") from None

    return run_command


@pytest.fixture
def succeed(run):
    """Runs a command as `run` does, and checks that it exits with 0."""

    def run_command(*command, **environment):
        result = run(*command, **environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run_command


@pytest.fixture
def hosts(tmp_path):
    """Three virtual hosts."""
    with Hosts(["hosta", "hostb", "hostc"], tmp_path / "hosts") as virtual_hosts:
        yield virtual_hosts


def horovodrun(transport, *words):
    """Returns an entry of LAUNCHERS: two ranks of config.sh with these arguments under horovodrun."""
    return 2, ["horovodrun", transport, "-np", "2", "-H", "localhost:2", "bash", "config.sh", *words], {}


# Number of ranks, command, environment.
LAUNCHERS = {
    "run.sh": (2, ["bash", "run.sh"], {"NP": "2"}),
    "pytorch/run.sh": (2, ["bash", "pytorch/run.sh"], {"NP": "2"}),
    "horovodrun over MPI": horovodrun("--mpi"),
    # As in docs/mxnet.md: horovodrun would take --network for an abbreviation of its own options.
    "horovodrun over Gloo": horovodrun("--gloo", "--loss=arcface", "network=small"),
    "python": (1, [sys.executable, "train_memory.py"], {}),
    "torchrun": (2, [TORCH / "torchrun", "--standalone", "--nproc_per_node=2", "train.py"], {}),
}
