"""Runs facts.py on a host, through ssh or, on this machine, as a child process."""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partial_fc.distributed.interfaces import source_address

from . import facts
from .hostfile import Host

# BatchMode: nobody can answer a prompt. -4: MPI, Horovod's Gloo and the heartbeat use IPv4, so its route is checked.
SSH_OPTIONS = ("-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SECONDS = 12  # timeout for all facts of a host


class Probe:
    """What is known about one host."""

    def __init__(self, host: Host):
        self.host = host
        self.facts: dict[str, Any] = {}  # answer of facts.py; empty if it failed
        self.error = ""  # why it failed: the last message of ssh or facts.py
        addresses = []
        with contextlib.suppress(OSError):  # ssh may know the host by another name
            addresses = [entry[4][0] for entry in socket.getaddrinfo(host.name, None, socket.AF_INET)]
        # Whether it is this machine, where mpirun starts ranks without ssh.
        self.local = host.name in ("localhost", socket.gethostname()) or any(
            address.startswith("127.") or source_address(address) == address for address in addresses
        )

    def collect(self, request: Mapping[str, Any]) -> None:
        """Sets the facts of the host, or the error."""
        # Python reads facts.py from its input. -I: it imports no modules of the user or of the current folder.
        arguments = ["-IS", "-", json.dumps(request)]
        command = ["env", "-u", "SSH_CONNECTION", sys.executable, *arguments]  # set if the user logged in by ssh
        if not self.local:
            python = shlex.quote(f"{request['venv']}/bin/python")
            script = f"p={python}; test -x $p || p=python3; exec $p {shlex.join(arguments)}"
            ssh = ["ssh", *SSH_OPTIONS, *shlex.split(os.environ.get("OMPI_MCA_plm_rsh_args", ""))]
            command = [*ssh, self.host.name, shlex.join(["sh", "-c", script])]
        program, error = Path(facts.__file__).read_text(), ""
        # Not pipes, which a helper process of ssh may keep open after ssh has ended.
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
        ):
            try:
                subprocess.run(command, input=program, stdout=out, stderr=err, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                error = f"no answer in {SECONDS} s"
            except OSError as problem:  # ssh is not installed
                error = str(problem)
            for file in (out, err):
                file.seek(0)
            for line in out:  # the shell's start-up files may print lines as well
                _, mark, answer = line.partition(f"{request['token']} ")
                self.facts = json.loads(answer) if mark else self.facts
            if not self.facts:
                messages = [line.strip() for line in err if line.strip()]
                self.error = "; ".join(filter(None, [error, *messages[-1:]])) or "no message"


def networks(probes: Sequence[Probe]) -> list[str]:
    """Returns the distinct networks of both ends of the ssh connections from this machine."""
    ends = []
    for probe in probes:
        if probe.facts and not probe.local:
            address = probe.facts["address"] or probe.host.name
            ends += [probe.facts["network"], facts.network(source_address(address))]
    return [network for network in dict.fromkeys(ends) if network]
