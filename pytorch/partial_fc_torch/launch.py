"""Runs torchrun on one host: it accepts no connections, and exits with the code of its processes.

torchrun's rendezvous listens on all interfaces without authentication and unpickles what it receives. One host needs no
rendezvous, so the store stays in this process. torchrun itself exits with 1 whatever the code of the first failing
process, and prints a traceback although the processes report their own errors.
"""

import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main

from partial_fc.distributed.errors import PREEMPTED, REFUSED
from partial_fc.utils.cores import usable_cores
from partial_fc.utils.text import plural

BACKEND = "one-host"
MOST_PER_CORE = 8  # processes on a host without a GPU
PORT = 29500  # torchrun's default for MASTER_PORT; no process listens there


class OneHost(StaticTCPRendezvous):
    """The rendezvous of a single host with itself."""

    use_agent_store = False  # processes cannot reach it

    def __init__(self, parameters: RendezvousParameters):
        super().__init__("127.0.0.1", PORT, 0, 1, parameters.run_id, 0)
        self._store = HashStore()

    def get_backend(self) -> str:
        """Returns the name that selects this rendezvous in torchrun."""
        return BACKEND


class RefusedError(Exception):
    """The settings or the data are wrong, which another attempt does not change."""


class Process(subprocess.Popen):
    """A process of the job; the class keeps every one, as torchrun drops exit codes when it is asked to stop."""

    attempts: dict[str, list[subprocess.Popen]] = {}  # restart count -> processes

    def __init__(self, *args, env, **options):
        attempt = env["TORCHELASTIC_RESTART_COUNT"]
        if attempt not in self.attempts and any(each.returncode == REFUSED for each in processes_of_attempt()):
            raise RefusedError
        signal.signal(signal.SIGINT, interrupt)  # torchrun has just set its own handler
        super().__init__(*args, env=env, **options)  # type: ignore[call-overload]
        self.attempts.setdefault(attempt, []).append(self)


def processes_of_attempt() -> list[subprocess.Popen]:
    """Returns the processes of the last attempt."""
    *_, last = [[], *Process.attempts.values()]
    return last


def interrupt(*_: object) -> NoReturn:
    """Handles the first Ctrl-C, upon which torchrun interrupts its processes and waits until they have saved."""
    signal.signal(signal.SIGINT, kill)
    raise SignalException("interrupted", signal.SIGINT)


def kill(*_: object) -> None:
    """Handles a further Ctrl-C, during which torchrun waits for its processes: kills these."""
    running = [process for process in processes_of_attempt() if process.poll() is None]
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
    if running:
        print("interrupted again: nothing was saved since the last checkpoint", file=sys.stderr, flush=True)


def code_after_stop() -> int:
    """Returns the exit code after a stop: a failed process's code, or PREEMPTED if none failed."""
    last = processes_of_attempt()
    failed = [process.returncode for process in last if process.returncode not in (None, 0, PREEMPTED)]
    code = max(failed, default=PREEMPTED)
    return code if code > 0 else 128 - code


def processes_of_host(asked: str) -> int:
    """Returns the number of processes to start on this host.

    Args:
        asked: a number, or ``auto``: one per GPU, or two without a GPU.

    Raises:
        ValueError: Without a GPU, the processes would share each core with so many that connecting times out.
    """
    if asked == "auto":
        return torch.cuda.device_count() or 2
    processes, cores = int(asked), usable_cores()
    if processes > MOST_PER_CORE * cores and not torch.cuda.is_available():
        raise ValueError(
            f"{processes} processes are too many for this host, which has no GPU and {plural(cores, 'usable core')}: "
            f"start at most {MOST_PER_CORE * cores}"
        )
    return processes


def launch(arguments: Sequence[str]) -> int:
    """Runs torchrun with these arguments; returns its exit code by the conventions of a shell."""
    # They warn of each signal that they forward, and repeat each failure of a process, which has said why itself.
    for module, level in (("agent.server.api", logging.ERROR), ("multiprocessing.api", logging.CRITICAL)):
        logging.getLogger(f"torch.distributed.elastic.{module}").setLevel(level)
    subprocess_handler.Popen = Process
    rendezvous_handler_registry.register(BACKEND, OneHost)
    options = ["--nnodes=1", f"--rdzv-backend={BACKEND}", "--rdzv-endpoint=none", f"--rdzv-id={secrets.token_hex(8)}"]
    try:
        main([*options, *arguments])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"error: the process of rank {rank} was killed by {name}", file=sys.stderr)
        return 128 - failure.exitcode
    except RefusedError:
        return REFUSED
    except SignalException as stop:
        return 128 + stop.sigval if stop.sigval == signal.SIGINT else code_after_stop()
    return 0
