"""torchrun on one host for pytorch/run.sh: nobody can connect to it, and it ends with the exit code of its processes.

torchrun's own rendezvous listens on all interfaces without authentication, and what it reads there are pickles. On one
host there is nobody to meet: its store stays in this process. torchrun itself ends with 1 whatever the code of the
process that failed first was, and prints a traceback, although the processes report their errors themselves.
"""

import secrets
import signal
import subprocess
import sys

from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main

BACKEND = "one-host"
STOPPED = 75  # saved and stopped by a signal
PORT = 29500  # torchrun's default, MASTER_PORT of the processes; nobody listens there


class OneHost(StaticTCPRendezvous):
    """The rendezvous of a host with itself."""

    use_agent_store = False  # no process can reach it

    def __init__(self, parameters: RendezvousParameters):
        super().__init__("127.0.0.1", PORT, 0, 1, parameters.run_id, 0)
        self._store = HashStore()

    def get_backend(self) -> str:
        """The name by which torchrun asks for it."""
        return BACKEND


class Process(subprocess.Popen):
    """A process of the job. torchrun does not say with which codes they ended if it was itself asked to stop."""

    attempts: dict[str, list[subprocess.Popen]] = {}

    def __init__(self, *args, env, **options):
        super().__init__(*args, env=env, **options)
        self.attempts.setdefault(env["TORCHELASTIC_RESTART_COUNT"], []).append(self)


def code_after_stop() -> int:
    """Returns the exit code of processes that were asked to stop: that of one that failed, else that of the stop."""
    *_, last = [[], *Process.attempts.values()]
    failed = [process.returncode for process in last if process.returncode not in (None, 0, STOPPED)]
    code = max(failed, default=STOPPED)
    return code if code > 0 else 128 - code


def launch() -> int:
    """Runs torchrun with the arguments of this program; returns the exit code as a shell counts it."""
    subprocess_handler.Popen = Process
    rendezvous_handler_registry.register(BACKEND, OneHost)
    options = ["--nnodes=1", f"--rdzv-backend={BACKEND}", "--rdzv-endpoint=none", f"--rdzv-id={secrets.token_hex(8)}"]
    try:
        main([*options, *sys.argv[1:]])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"error: the process of rank {rank} was killed by {name}", file=sys.stderr)
        return 128 - failure.exitcode
    except SignalException as stop:
        return 128 + stop.sigval if stop.sigval == signal.SIGINT else code_after_stop()
    return 0


if __name__ == "__main__":
    sys.exit(launch())
