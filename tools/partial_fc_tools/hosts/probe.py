"""A probe of a host: facts.py runs there, through ssh or as a child process."""

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

# No one is there to answer a prompt. -4: MPI, Gloo in Horovod and the heartbeat use IPv4, so that its route counts.
SSH_OPTIONS = ("-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SECONDS = 12  # for all facts


class Probe:
    """What is known of one host."""

    def __init__(self, host: Host):
        self.host = host
        self.facts: dict[str, Any] = {}  # the answer of facts.py; empty if there is none
        self.error = ""  # why there is none: the last message of ssh or facts.py
        addresses = []
        with contextlib.suppress(OSError):  # ssh may know the host by another name
            addresses = [entry[4][0] for entry in socket.getaddrinfo(host.name, None, socket.AF_INET)]
        own = [address for address in addresses if address.startswith("127.") or source_address(address) == address]
        # Whether it is this machine, which mpirun does not reach by ssh.
        self.local = bool(own) or host.name in ("localhost", socket.gethostname())

    def collect(self, request: Mapping[str, Any]) -> None:
        """Gets the facts of the host, or the error."""
        # facts.py is the input. -I: no module of the user's, or of the folder in which it starts.
        arguments = ["-IS", "-", json.dumps(request)]
        command = ["env", "-u", "SSH_CONNECTION", sys.executable, *arguments]  # it is not how this machine is reached
        if not self.local:
            python = shlex.quote(f"{request['venv']}/bin/python")
            script = f"p={python}; test -x $p || p=python3; exec $p {shlex.join(arguments)}"
            ssh = ["ssh", *SSH_OPTIONS, *shlex.split(os.environ.get("OMPI_MCA_plm_rsh_args", ""))]
            command = [*ssh, self.host.name, shlex.join(["sh", "-c", script])]
        program, error = Path(facts.__file__).read_text(), ""
        # Files, as a helper process of ssh may outlive it and hold its pipes open.
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
        ):
            try:
                subprocess.run(command, input=program, stdout=out, stderr=err, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                error = f"no answer in {SECONDS} s"
            except OSError as problem:  # there is no ssh
                error = str(problem)
            for file in (out, err):
                file.seek(0)
            for line in out:  # a shell's start-up files may print, too
                _, mark, answer = line.partition(f"{request['token']} ")
                self.facts = json.loads(answer) if mark else self.facts
            if not self.facts:
                messages = [line.strip() for line in err if line.strip()]
                self.error = "; ".join(filter(None, [error, *messages[-1:]])) or "no message"


def networks(probes: Sequence[Probe]) -> list[str]:
    """Returns the networks, each once, of both ends of the ssh connections from this machine."""
    found = []
    for probe in probes:
        if probe.facts and not probe.local:
            address = probe.facts["address"] or probe.host.name
            found += [probe.facts["network"], facts.network(source_address(address))]
    return [network for network in dict.fromkeys(found) if network]
