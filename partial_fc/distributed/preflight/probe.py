"""A probe of a host: facts.py runs there, through ssh or as a child process, and answers two requests."""

from __future__ import annotations

import base64
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
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import facts, ssh, ssh_errors
from .hostfile import Host
from .row import Row

SOURCE = facts.__file__


class RemoteProbe:
    """What is known of one host; it grows while the host is probed.

    Attributes:
        host: Name and slots.
        local: Whether it is this machine. Only one probe of it runs, from ``query_local``; others stop at once.
        call: How ssh connects to the host; None before that is known, and for this machine.
        facts: The answer of facts.py; empty until it arrives.
        error: The row that explains why there are no facts.
        seconds: Seconds until the facts arrived.
        clock_offset: Seconds by which the host's clock is ahead.
        clock_error: Seconds by which ``clock_offset`` may be wrong.
        targets: Name -> (address, port) of the hosts that it has to connect to.
        connections: Name -> why it could not connect to that host; empty if it could.
    """

    def __init__(self, host: Host):
        self.host = host
        self.local = False
        self.call: ssh.Call | None = None
        self.facts: dict[str, Any] = {}
        self.error: Row | None = None
        self.seconds = self.clock_offset = self.clock_error = 0.0
        self.targets: Mapping[str, tuple[str, int]] = {}
        self.connections: dict[str, str] = {}
        self._process: subprocess.Popen | None = None
        self._stderr: Any = tempfile.TemporaryFile("w+", errors="replace")
        self._token = ""
        self._closed = False

    def query(self, request: Mapping[str, Any]) -> None:
        """Get the facts of a host through ssh; ``error`` explains a failure."""
        start = time.monotonic()
        self.local = is_local(self.host.name)
        if self.local or self._closed:  # closed: the name server answered too late
            return
        try:
            self.call = ssh.look_up(self.host.name, os.environ)
        except ValueError as error:
            self.error = Row("bad", "ssh", *ssh_errors.explain_configuration(str(error)))
        except FileNotFoundError:
            self.error = Row("bad", "ssh", "this machine has no ssh client", "apt-get install openssh-client")
        except (OSError, subprocess.TimeoutExpired) as error:
            self.error = Row("bad", "ssh", f"ssh does not start: {error}", f"run it by hand: ssh {self.host.name} true")
        else:
            self._start(ssh.command_line(self.call, shlex.join(["sh", "-c", _script(request)])), request)
        self.seconds = time.monotonic() - start

    def query_local(self, request: Mapping[str, Any]) -> None:
        """Get the facts of this machine, without ssh."""
        self.local = True
        self._start([sys.executable, "-IS", SOURCE, _encode(request)], request)

    def try_connections(self, targets: Mapping[str, tuple[str, int]]) -> None:
        """Measure the clock offset, and let the host connect to others.

        Args:
            targets: Name -> (address, port).
        """
        assert self._process is not None and self._process.stdin is not None
        self.targets = targets
        asked = time.time()
        with contextlib.suppress(OSError):  # it has exited since; then there is no answer either
            self._process.stdin.write(json.dumps(targets) + "\n")
            self._process.stdin.flush()
        clock = self._read()
        if clock is None:
            return
        answered = time.time()
        self.clock_offset, self.clock_error = clock - (asked + answered) / 2, (answered - asked) / 2
        self.connections = self._read() or {}

    def close(self) -> None:
        """End what still runs; a host that has not answered so far gets an ``error``."""
        self._closed = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not self.facts and self.error is None:
            self.error = self._timeout_row()

    def _start(self, command: Sequence[str], request: Mapping[str, Any]) -> None:
        self._token = request["token"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._stderr,
            text=True,
            errors="replace",
            env=ssh.in_english(os.environ),
            start_new_session=True,  # a group of its own, so that ssh's helper processes end with it
        )
        self._accept(self._read(), request["clone"])

    def _read(self) -> Any:
        """The next answer, past whatever a shell's start-up files print; None at the end."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, content = line.partition(self._token + " ")
            if mark:
                return json.loads(content)
        return None

    def _accept(self, answer: Any, clone: str) -> None:
        if isinstance(answer, dict):
            self.facts = answer
        elif answer is not None:
            found = f"no Python 3.10 or newer, neither in {clone}/.venv nor on the PATH"
            self.error = Row("bad", "Python", found, "install python3 and python3-venv there")
        elif self._process is not None and self._process.wait() != -signal.SIGKILL:  # not ended by close()
            self.error = self._failure_row()

    def _failure_row(self) -> Row:
        if self.call is None:
            return Row("bad", "facts", f"this machine does not answer: {ssh_errors.last_message(self._log())}")
        return Row("bad", "ssh", *ssh_errors.explain(self._log(), self.call))

    def _timeout_row(self) -> Row:
        if self.local:
            return Row("bad", "facts", "this machine does not answer in time")
        if self.call is None:
            return Row("bad", "ssh", *ssh_errors.name_server_timeout(self.host.name))
        return Row("bad", "ssh", *ssh_errors.explain_timeout(self._log(), self.call))

    def _log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()


def is_local(name: str) -> bool:
    """Whether a name or address belongs to this machine; mpirun does not use ssh for it."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False  # ssh may know the host by another name
    return bool(addresses & {address for _, address, _ in facts.interfaces()})


def run_in_threads(work: Callable[[RemoteProbe], None], probes: Iterable[RemoteProbe], deadline: float) -> None:
    """Run some work for each probe in its own thread; threads that miss the deadline are left behind."""
    threads = [threading.Thread(target=work, args=(probe,), daemon=True) for probe in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def _encode(request: Mapping[str, Any]) -> str:
    return base64.b64encode(json.dumps(request).encode()).decode()


def _script(request: Mapping[str, Any]) -> str:
    """One line of sh that contains facts.py and runs it, with the Python of the clone or of the host."""
    with open(SOURCE, "rb") as stream:
        program = base64.b64encode(zlib.compress(stream.read(), 9)).decode()
    python = shlex.quote(os.path.join(request["clone"], ".venv", "bin", "python"))
    loader = '"import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))"'
    recent = '"import sys; sys.exit(sys.version_info < (3, 10))"'
    answer = f"exec $p -IS -c {loader} {_encode(request)} {program}"
    none = f"echo {request['token']} 0"
    return f"p={python}; test -x $p || p=python3; if $p -c {recent} 2>/dev/null; then {answer}; else {none}; fi"
