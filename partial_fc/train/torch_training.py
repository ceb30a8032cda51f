"""The program of a PyTorch training: one process or, with ``--nproc``, the launcher of this host's processes."""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from partial_fc.distributed.env import RankInfo, cores_of_rank, rank_info
from partial_fc.distributed.errors import PREEMPTED, REFUSED, errors_of_head
from partial_fc.distributed.interfaces import set_interface_to, set_loopback_interface
from partial_fc.distributed.signals import release_signals
from partial_fc.training.program import TrainingProgram
from partial_fc.utils.cli import whole_number
from partial_fc.utils.imports import import_trainer, search_current_folder
from partial_fc.utils.text import say
from partial_fc.utils.user_code import place_in_user_code, refusal

DESCRIPTION = """Trains an embedding with Partial FC, in several processes of this host.

Relative paths start at the current folder. TERM, USR1 and Ctrl-C save a checkpoint and stop; a second Ctrl-C stops at
once. Exit codes: 0: finished; 2: refused before training started; 75: saved and stopped by a signal; 130: by Ctrl-C;
others: failed.

Several hosts:   torchrun --nproc_per_node=8 --nnodes=2 ... -m partial_fc.train [name=value ...]
I/O profiling:   the same with --profile-io
Run it again:    the same with --config models/small-arcface-demo/settings.json
"""
RESUME = {"resume=0": "resume=", "resume=1": "resume=auto"}  # values of the tutorial's trainer
_ROOT = Path(__file__).parents[2]
CLONE = _ROOT if (_ROOT / "setup-utils").is_dir() else None  # None in an installed package
# What Python runs in each process. A folder, whose __main__.py runs, adds no other module to the import path.
PROGRAM = CLONE / "train.py" if CLONE else Path(__file__).parent


def add_job_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of the launcher, and returns the parser."""
    parser.add_argument(
        "--nproc",
        type=lambda text: text if text == "auto" else str(whole_number(1)(text)),
        metavar="N",
        help="number of processes on this host, or auto: one per GPU, or 2 without a GPU",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole_number(0),
        metavar="N",
        help="restarts of all processes after a failure, from the newest checkpoint (0)",
    )
    parser.add_argument(
        "--trainer", choices=("torch", "mxnet"), help="mxnet trains with MXNet, in a clone with its environment (torch)"
    )
    return parser


class _Stopped(BaseException):
    """A stop request before the processes start.

    Unlike os._exit, it removes temporary files; unlike SystemExit, it is not taken for an error of the user's code.
    """


def _stop(*_: object) -> NoReturn:
    raise _Stopped


class TorchTraining(TrainingProgram):
    """The program of one process of the PyTorch trainer, and their launcher."""

    file, trainer, package, description = "partial-fc train", "torch", "partial_fc_torch", DESCRIPTION
    install = "pip install -r requirement.txt" if CLONE else "pip install '<wheel or clone>[torch]'"

    def import_default(self) -> ModuleType:
        """Imports the settings; train.py of a clone imports default.py, which adds the user's config.py."""
        from partial_fc.settings import configuration

        return configuration

    def add_arguments(self, parser):
        """Adds the options of the launcher, recipes, and the option that torch.distributed.launch appends."""
        add_job_options(parser)
        parser.add_argument(
            "--recipe", metavar="NAME", help="train a recipe of arcface_torch, such as ms1mv3_r50, or a file of one"
        )
        parser.add_argument(
            "--local_rank", "--local-rank", type=int, metavar="N", help="accepted; the variable LOCAL_RANK decides"
        )

    def run(self, argv):
        """Runs this process; with ``--nproc``, starts the processes of this host and exits with their code."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        try:
            job, words = add_job_options(parser).parse_known_args(argv)
            if job.trainer == "mxnet":
                _run_mxnet(job, words)
            if job.nproc is None and job.max_restarts is not None:
                raise ValueError("--max-restarts goes with --nproc")
        except (argparse.ArgumentError, ValueError) as error:
            say(f"error: {error}", sys.stderr)
            sys.exit(REFUSED)
        if job.nproc is None:
            return super().run(words)
        self.file, self.description = TorchTraining.file, TorchTraining.description
        if "--print-config" in words:
            return super().run(words)
        try:
            sys.exit(self._launch(job, words))
        except _Stopped:
            sys.exit(PREEMPTED)

    def _launch(self, job: argparse.Namespace, words: Sequence[str]) -> int:
        """Starts the processes of this host; returns their exit code."""
        signal.signal(signal.SIGTERM, _stop)  # until torchrun handles it
        signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        release_signals()
        # Refuses settings before torchrun starts.
        _, settings = self._load(["--print-config", *words], RankInfo(0, 1, 0, 1))
        search_current_folder()
        try:
            launcher = import_trainer("partial_fc_torch.launch")
            processes = launcher.processes_of_host(job.nproc)
            os.environ.setdefault("OMP_NUM_THREADS", str(cores_of_rank(processes)))  # torchrun would set one thread
            # Here too, so that a missing set starts no process, and none waits for another that draws the demo.
            self._build_tasks(settings, prepares=True)
        except (Exception, SystemExit) as error:
            is_refusal = isinstance(error, (OSError, ValueError, ImportError))
            if not (is_refusal or place_in_user_code(error)):
                raise
            say(self._message(error if is_refusal else refusal(error)), sys.stderr)
            sys.exit(REFUSED)
        # Seconds from the stop signal until torchrun kills a process, by default 30: saving may take a minute.
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "75")
        # Restarts resume from checkpoints of this run, not of an earlier run in the same output folder.
        os.environ.setdefault("PARTIAL_FC_RUN", f"{socket.gethostname()}-{os.getpid()}-{int(time.time())}")
        options = [f"--nproc_per_node={processes}", f"--max-restarts={job.max_restarts or 0}"]
        code: int = launcher.launch([*options, os.path.abspath(sys.argv[0]), *words])
        return code

    def load_settings(self, args):
        """Fills the settings; ``resume`` may be 0 or 1."""
        args.settings = [RESUME.get(word, word) for word in args.settings]
        return super().load_settings(args)

    def read_recipe(self, args) -> dict[str, Any] | None:
        """Returns the settings of the recipe that ``--recipe`` names, and prints its translation."""
        if args.recipe is None:
            return None
        from partial_fc.training.recipes.config_file import read_recipe
        from partial_fc.training.recipes.translate import translate

        ranks = rank_info(os.environ)
        translation = translate(read_recipe(args.recipe), ranks.size)
        os.environ.update(translation.environment)
        if ranks.rank == 0 and not args.print_config:
            for line in translation.lines():
                say(line)
        return translation.settings

    def prepare_host(self, settings):
        """Chooses the network interface between the ranks: between the hosts, or within a single host."""
        ranks = rank_info(os.environ)
        if ranks.size > ranks.local_size and "MASTER_ADDR" in os.environ:
            set_interface_to(os.environ, os.environ["MASTER_ADDR"])
        elif 1 < ranks.size == ranks.local_size:
            set_loopback_interface(os.environ)

    def load_framework(self, settings):
        """Imports PyTorch, and checks the margins and the optimizer of the settings."""
        build = import_trainer("partial_fc_torch.build")
        # Reports an error in a user's own margin or optimizer before the data are read.
        for head in self.import_default().heads:
            with errors_of_head(head.name):
                build.check_margin(head.settings)
        build.check_optimizer(settings)
        return build.TorchFramework(backend=settings.backend)

    def connect(self, settings):
        """Starts the process group, if a launcher started several processes."""
        if rank_info(os.environ).size > 1:
            import_trainer("partial_fc_torch.process_group").start_process_group(
                settings.backend, settings.step_timeout
            )

    def disconnect(self):
        """Ends this process if it is one of several.

        PyTorch 2.13 with Gloo sometimes aborts at exit, even after the process group has ended.
        """
        if rank_info(os.environ).size > 1:
            import_trainer("partial_fc_torch.process_group").end_process_group()
            sys.stdout.flush()
            os._exit(0)


def _run_mxnet(job: argparse.Namespace, words: list[str]) -> NoReturn:
    """Replaces this process by run.sh of the clone."""
    if CLONE is None or not (CLONE / ".venv").is_dir():
        raise ValueError("MXNet is not installed: run `bash setup-utils/install.sh` in a clone, and start this there")
    numbers = {"NP": None if job.nproc == "auto" else job.nproc, "MAX_RESTARTS": job.max_restarts}
    os.environ.update({name: str(number) for name, number in numbers.items() if number is not None})
    release_signals()
    os.execvp("bash", ["bash", str(CLONE / "run.sh"), *words])
