"""The users' own commands, in processes of their own, on a set small enough to train on in seconds."""

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
LIMIT = 800  # seconds after which what has not ended hangs: it is killed, and its test fails
VERIFIED = ["val_targets=['demo_val']", "baselines=True", "verify_every=4"]  # settings
TORCH = ROOT / ".venv-torch" / "bin"
# Ranks of PyTorch where no launcher shows anything: `run` has them forked by a process that has imported it.
IN_TURN = [TORCH / "python", "tests/in_turn.py"]
needs_torch = pytest.mark.skipif(not TORCH.exists(), reason="no .venv-torch (install-torch.sh makes it)")
NO_HOSTS = unavailable()
needs_hosts = pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "-")


# Files of slow tests that run.sh runs beside each other, from the longest.
LONG = "walkthroughs between_trainers resume odd_machines restarts slurm"
LONG = {f"test_{name}.py": place for place, name in enumerate(LONG.split())}


# What only `bash tests/run.sh --all` runs: file -> parts of the names of tests; "" is all of them. Each has a relative
# with another launcher, trainer or fault that .ci/run runs, or tests of the same code in one process.
THOROUGH = {
    "between_trainers": ["mxnet-torch"],
    "check_hosts": ["without_the_clone", "only_starts", "firewall", "shell_that", "do_not_answer", "arguments"],
    "demo_collapse": [""],
    "faults": ["gloo-0-evaluation", "torchrun-0-", "MPI-0-save", "mpi-0-results", "traceback[mpi", "cannot_be_read"]
    + ["never_starts[gloo", "before_it_has_started[torchrun", "broken_settings", "other_code", "[half a file"],
    "glyphs_experiment": [""],
    "hosts": ["Gloo", "others_continue", "lost_link", "too_late", "another_host", "sshd", "restart", "short_failure"]
    + ["shared_folder"],
    "io_profile": ["one_line[python"],
    "launchers": ["[pytorch/run.sh", "[horovodrun"],
    "manifests": [""],
    "odd_machines": ["folder[run.sh", "twenty_moments"],
    "own_task_commands": ["is_measured"],
    "planner_check": [""],
    "preemption": ["saved[horovodrun", "during", "end[run.sh-bash", "end[torchrun", "end[horovodrun", "all[torchrun"]
    + ["all[horovodrun", "goes_on[run.sh"],
    "restarts": ["training[pytorch/run.sh", "killed_mpirun", "soak"],
    "run_sh": ["named[pytorch/run.sh", "reach_other_hosts"],
    "slurm": [""],
    "torch_hosts": ["tutorials", "elastic"],
    "torch_loops": ["three_processes"],
    "training_commands": ["suggests"],
    "walkthroughs": ["the_tutorial", "test_fine_tuning"],
    "words_experiment": [""],
}


def is_thorough(item):
    """Returns whether only --all runs a test."""
    return any(part in item.name for part in THOROUGH.get(item.path.stem.removeprefix("test_"), ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Marks what is in this folder. Each process of xdist begins with long tests: the last would run alone."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("commands")
            if is_thorough(item):
                item.add_marker("thorough")
            if is_thorough(item) or item.get_closest_marker("timed"):
                item.add_marker("slow")
    yield  # here the tests that -m does not select are left out
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = sorted((item for item in items if item.path.name in LONG), key=lambda item: LONG[item.path.name])
    rest = [item for item in items if item.path.name not in LONG]
    size = -(-len(rest) // processes)
    items[:] = []
    for number in range(processes):
        items += [*long[number::processes], *rest[number * size : (number + 1) * size]]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Returns a folder that one of pytest's processes writes, while the others that want it wait."""
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
    """Path of the train.rec of 20 identities of 8 images, and 40 validation pairs beside it.

    Each of pytest's processes has its own: tests count and kill the ranks that have this path in their command line.
    """
    root = tmp_path_factory.mktemp("data") / "faces"
    write_demo(root, DemoSize(seed=1, identities=CLASSES, images_per_identity=8, held_out=20, pairs=40))
    return root / "train.rec"


@pytest.fixture
def settings(faces, tmp_path):
    """Words for the command line: the small set, a few small steps without verification, a folder of its own."""
    return [
        "dataset=demo",
        f"rec={faces}",
        f"models_root={tmp_path / 'models'}",
        f"num_classes={CLASSES}",
        "batch_size=8",
        "max_update=7",
        "lr_steps=[5]",
        "frequent=2",
        "verify_every=100",  # also when the report is written
        "save_every=5",
        "val_targets=[]",
        "baselines=False",
    ]


@pytest.fixture(scope="session")
def fork_server(made_once):
    """Returns the socket of a process that has imported PyTorch, one for all of pytest's processes."""

    def start(folder):
        folder.mkdir()
        first = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        # Not below the folder, whose path may be longer than the name of a socket.
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
    """Runs a command in the clone with one thread; returns what it was and gave. Nothing takes longer than the timeout.

    Two threads of each of several tests wait for each other, and use the cores while they do.
    """

    def run_command(*command, timeout=LIMIT, **environment):
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        if list(command[:2]) == IN_TURN:
            return in_turn.ask(fork_server(), list(map(str, command[2:])), ROOT, env, timeout)
        return subprocess.run(
            [str(word) for word in command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout
        )

    return run_command


@pytest.fixture
def hosts(tmp_path):
    """Three virtual hosts."""
    with Hosts(["hosta", "hostb", "hostc"], tmp_path / "hosts") as made:
        yield made


def horovodrun(transport, *words):
    """Two ranks of config.sh with these words under horovodrun, as an entry of LAUNCHERS."""
    return 2, ["horovodrun", transport, "-np", "2", "-H", "localhost:2", "bash", "config.sh", *words], {}


# Number of ranks, command, environment.
LAUNCHERS = {
    "run.sh": (2, ["bash", "run.sh"], {"NP": "2"}),
    "pytorch/run.sh": (2, ["bash", "pytorch/run.sh"], {"NP": "2"}),
    "horovodrun over MPI": horovodrun("--mpi"),
    # As in docs/mxnet.md: horovodrun takes --network for an abbreviation of its own options.
    "horovodrun over Gloo": horovodrun("--gloo", "--loss=arcface", "network=small"),
    "python": (1, [sys.executable, "train_memory.py"], {}),
    "torchrun": (2, [TORCH / "torchrun", "--standalone", "--nproc_per_node=2", "train.py"], {}),
}
