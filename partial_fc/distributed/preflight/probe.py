"""A visit to a host: facts.py is started there, through ssh or as a child, and asked twice."""

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
    """What is known of one host, growing while it is visited.

    Attributes:
        host: its name and slots.
        here: it is this machine. Only one visit to it is made, by ``begin_here``; others end at once.
        facts: its answer, {} until it came.
        trouble: the row that tells why there is none.
        seconds: from the start to the facts.
        offset, doubt: seconds by which its clock is ahead, and by which that may be wrong.
        tried: name -> (address, port) that it was to reach.
        reached: name -> why it could not; empty: it could.
    """

    def __init__(self, host: Host):
        self.host = host
        self.here = False
        self.call: ssh.Call | None = None
        self.facts: dict[str, Any] = {}
        self.trouble: Row | None = None
        self.seconds = self.offset = self.doubt = 0.0
        self.tried: Mapping[str, tuple[str, int]] = {}
        self.reached: dict[str, str] = {}
        self._process: subprocess.Popen | None = None
        self._said: Any = tempfile.TemporaryFile("w+", errors="replace")
        self._word = ""
        self._over = False

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Gets the facts of another host; what goes wrong becomes the trouble."""
        began = time.monotonic()
        self.here = is_here(self.host.name)
        if self.here or self._over:  # over: the name server has answered too late
            return
        by_hand = f"try it by hand: ssh {self.host.name} true"
        try:
            self.call = ssh.look_up(self.host.name, os.environ)
        except ValueError as error:
            self.trouble = Row("bad", "ssh", *ssh_errors.explain_settings(str(error)))
        except FileNotFoundError:
            self.trouble = Row("bad", "ssh", "there is no ssh client here", "apt-get install openssh-client")
        except (OSError, subprocess.TimeoutExpired) as error:
            self.trouble = Row("bad", "ssh", f"ssh does not start: {error}", by_hand)
        else:
            self._ask(ssh.command_line(self.call, shlex.join(["sh", "-c", _script(asked)])), asked)
        self.seconds = time.monotonic() - began

    def begin_here(self, asked: Mapping[str, Any]) -> None:
        """The same of this host, without ssh."""
        self.here = True
        self._ask([sys.executable, "-IS", SOURCE, _request(asked)], asked)

    def look_around(self, others: Mapping[str, tuple[str, int]]) -> None:
        """Compares the clocks, and has the host try to reach others: name -> (address, port)."""
        assert self._process is not None and self._process.stdin is not None
        self.tried = others
        asked = time.time()
        with contextlib.suppress(OSError):  # it is gone since; then there is no answer either
            self._process.stdin.write(json.dumps(others) + "\n")
            self._process.stdin.flush()
        clock = self._read()
        if clock is None:
            return
        answered = time.time()
        self.offset, self.doubt = clock - (asked + answered) / 2, (answered - asked) / 2
        self.reached = self._read() or {}

    def end(self) -> None:
        """Ends what still runs; tells of a host that has not answered until now."""
        self._over = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not self.facts and self.trouble is None:
            self.trouble = self._silence()

    def _ask(self, command: Sequence[str], asked: Mapping[str, Any]) -> None:
        self._word = asked["word"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._said,
            text=True,
            errors="replace",
            env=ssh.plain(os.environ),
            start_new_session=True,  # its own group, with which the helpers of ssh end, too
        )
        self._take(self._read(), asked["clone"])

    def _read(self) -> Any:
        """The next answer, past whatever a shell's start-up prints; None at the end."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, content = line.partition(self._word + " ")
            if mark:
                return json.loads(content)
        return None

    def _take(self, answer: Any, clone: str) -> None:
        if isinstance(answer, dict):
            self.facts = answer
        elif answer is not None:
            found = f"no Python 3.10 or newer there, in {clone}/.venv or elsewhere"
            self.trouble = Row("bad", "Python", found, "install python3 and python3-venv there")
        elif self._process is not None and self._process.wait() != -signal.SIGKILL:  # not ended by end()
            self.trouble = self._failure()

    def _failure(self) -> Row:
        if self.call is None:
            return Row("bad", "facts", f"this host does not answer: {ssh_errors.last_word(self._words())}")
        return Row("bad", "ssh", *ssh_errors.explain(self._words(), self.call))

    def _silence(self) -> Row:
        if self.here:
            return Row("bad", "facts", "this host does not answer in time")
        if self.call is None:
            return Row("bad", "ssh", *ssh_errors.no_name_server(self.host.name))
        return Row("bad", "ssh", *ssh_errors.explain_silence(self._words(), self.call))

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read()


def is_here(name: str) -> bool:
    """Whether a name or address is one of this machine, which mpirun then does not call by ssh."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False  # ssh may know it by another name
    return bool(found & {address for _, address, _ in facts.interfaces()})


def side_by_side(work: Callable[[RemoteProbe], None], visits: Iterable[RemoteProbe], until: float) -> None:
    """Does some work for each visit in a thread of its own; leaves those behind that are not through at that time."""
    threads = [threading.Thread(target=work, args=(visit,), daemon=True) for visit in visits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))


def _request(asked: Mapping[str, Any]) -> str:
    return base64.b64encode(json.dumps(asked).encode()).decode()


def _script(asked: Mapping[str, Any]) -> str:
    """One line of sh that runs facts.py, itself within the line, with the clone's Python or the host's."""
    with open(SOURCE, "rb") as stream:
        program = base64.b64encode(zlib.compress(stream.read(), 9)).decode()
    python = shlex.quote(os.path.join(asked["clone"], ".venv", "bin", "python"))
    run = '"import base64, sys, zlib; exec(zlib.decompress(base64.b64decode(sys.argv.pop())))"'
    recent = '"import sys; sys.exit(sys.version_info < (3, 10))"'
    answer = f"exec $p -IS -c {run} {_request(asked)} {program}"
    none = f"echo {asked['word']} 0"
    return f"p={python}; test -x $p || p=python3; if $p -c {recent} 2>/dev/null; then {answer}; else {none}; fi"
