"""A probe of a host: facts.py runs there, through ssh or as a child process, and answers two requests."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partial_fc.distributed.interfaces import source_address
from partial_fc.utils.check_rows import Row
from partial_fc.utils.text import say

from . import facts
from .hostfile import Host

# facts.py is the first line of the input. -I: no module of the user's, or of the folder in which it starts.
RUN_INPUT = "import json; exec(json.loads(input()))"


class Probe:
    """What is known of one host, which is this machine if ``local``; it grows while the host is probed."""

    def __init__(self, host: Host, local: bool = False):
        self.host, self.local = host, local
        self.facts: dict[str, Any] = {}  # the answer of facts.py
        self.error: Row | None = None  # why there are no facts
        self.targets: Mapping[str, tuple[str, int]] = {}  # name -> (address, port) of hosts that it has to connect to
        self.connections: dict[str, str] = {}  # name -> why it could not connect to that host; empty if it could
        self._process: subprocess.Popen | None = None
        self._stderr: Any = tempfile.TemporaryFile("w+", errors="replace")
        self._token = ""

    @property
    def address(self) -> str:
        """The address at which the host accepted the ssh connection; its name, if sshd hides it."""
        return self.facts["address"] or self.host.name

    def find(self) -> None:
        """Find out whether the host is this machine: mpirun does not use ssh for that."""
        name = self.host.name
        try:
            addresses = [entry[4][0] for entry in socket.getaddrinfo(name, None, socket.AF_INET)]
        except OSError:
            addresses = []  # ssh may know the host by another name
        own = [address for address in addresses if address.startswith("127.") or source_address(address) == address]
        self.local = bool(own) or name in ("localhost", socket.gethostname())

    def query(self, request: Mapping[str, Any]) -> None:
        """Get the facts of the host."""
        self._token = request["token"]
        try:
            self._process = subprocess.Popen(
                self._command(request["venv"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                errors="replace",
                start_new_session=True,  # a group of its own, so that ssh's helper processes end with it
            )
        except OSError as error:  # there is no ssh
            say(error, self._stderr)
            return
        self._send(Path(facts.__file__).read_text())
        self._send(request)
        self.facts = self._read() or {}

    def try_connections(self, targets: Mapping[str, tuple[str, int]]) -> None:
        """Let the host connect to others: name -> (address, port)."""
        self.targets = targets
        self._send(targets)
        self.connections = self._read() or {}

    def give_up(self, seconds: float) -> None:
        """Stop waiting for facts after these seconds; ``error`` tells why there are none."""
        exited = self._process is None or self._process.poll() is not None
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        found = "; ".join([*([] if exited else [f"no answer in {seconds} s"]), *lines[-1:]]) or "no message"
        if any(line.startswith("reading the fact") for line in lines):
            self.error = Row("bad", "facts", found, "is a file server down there, or a permission missing?")
        else:
            login = f"{shlex.join(_ssh(self.host.name))} true   must end at once, without a question or a message"
            key = f"a key: ssh-copy-id {self.host.name}; a port or user: ~/.ssh/config"
            self.error = Row("bad", "ssh", found, f"{login} ({key})")

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _command(self, venv: str) -> list[str]:
        if self.local:
            return [sys.executable, "-IS", "-c", RUN_INPUT]
        python = shlex.quote(f"{venv}/bin/python")
        script = f"p={python}; test -x $p || p=python3; exec $p -IS -c {shlex.quote(RUN_INPUT)}"
        # No one is there to answer a prompt. -4: MPI, Gloo in Horovod and the heartbeat use IPv4, so its route counts.
        options = ("-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
        return [*_ssh(self.host.name, *options), shlex.join(["sh", "-c", script])]

    def _send(self, content: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has exited; then there is no answer either
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()

    def _read(self) -> Any:
        """The next answer, past whatever a shell's start-up files print; None at the end."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, content = line.partition(self._token + " ")
            if mark:
                return json.loads(content)
        return None


def _ssh(name: str, *options: str) -> list[str]:
    """The ssh command to a host, with the arguments that the user gives to mpirun's."""
    return ["ssh", *options, *shlex.split(os.environ.get("OMPI_MCA_plm_rsh_args", "")), name]


def in_parallel(work: Callable[[Probe], None], probes: Iterable[Probe], seconds: float) -> None:
    """Run some work for each probe in its own thread; threads that take longer are left behind."""
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=work, args=(probe,), daemon=True) for probe in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))


def networks(probes: Sequence[Probe]) -> list[str]:
    """The networks, each once, of both ends of the ssh connections from this machine."""
    found = []
    for probe in probes:
        if probe.facts and not probe.local:
            found += [probe.facts["network"], facts.network(source_address(probe.address))]
    return [network for network in dict.fromkeys(found) if network]


def try_connections(probes: Sequence[Probe], seconds: float) -> None:
    """Let every host, this one included, connect to every other at the address that ssh uses."""
    answered = [probe for probe in probes if isinstance(probe.facts.get("port"), int)]

    def connect(caller: Probe) -> None:
        others = [probe for probe in answered if probe is not caller]
        addresses = [source_address(caller.address) if probe.local else probe.address for probe in others]
        pairs = zip(others, addresses)
        caller.try_connections({probe.host.name: (address, probe.facts["port"]) for probe, address in pairs})

    in_parallel(connect, answered, seconds)
