"""How this machine calls another one by ssh: as mpirun does, but without ever asking a question."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Nobody is there to answer; a host that is silent for so long (seconds) is away.
QUIET = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


class Call(NamedTuple):
    """What ssh makes of a host's name, by the user's settings.

    Attributes:
        address: what ssh is called with: a name or user@name.
        hostname, user, port: what it then connects to.
        port_from: where the port comes from, in words.
        keys: the files it looks for keys in.
        proxied: it goes through another host or program.
        arguments: what mpirun is told to give to ssh.
    """

    address: str
    hostname: str
    user: str
    port: str
    port_from: str
    keys: list[str]
    proxied: bool
    arguments: list[str]

    @property
    def option(self) -> str:
        """The port as an option, for command lines that a person is to type; empty for the usual one."""
        return "" if self.port == "22" else f"-p {self.port} "

    @property
    def who(self) -> str:
        return f"{self.user}@{self.hostname}"


def look_up(address: str, environ: Mapping[str, str], seconds: float = 5) -> Call:
    """Asks ssh itself what it makes of an address.

    Raises:
        ValueError: ssh cannot read its settings; in its own words.
        OSError, subprocess.TimeoutExpired: there is no ssh, or it hangs.
    """
    arguments = shlex.split(environ.get("OMPI_MCA_plm_rsh_args", ""))
    command = ["ssh", "-G", *arguments, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=plain(environ))
    if done.returncode:
        raise ValueError(done.stderr.strip())
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    known = dict(lines)
    port = known.get("port", "22")
    proxied = any(known.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))
    keys = [os.path.expanduser(value) for name, value in lines if name == "identityfile"]
    origin = _port_from(port, arguments)
    return Call(address, known.get("hostname", address), known.get("user", ""), port, origin, keys, proxied, arguments)


def command_line(call: Call, script: str) -> list[str]:
    """The words that run a script over there; -v is last, for an earlier -q would silence it."""
    return ["ssh", *QUIET, *call.arguments, "-v", call.address, script]


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, in which ssh and its like speak English."""
    return {**environ, "LC_ALL": "C"}


def _port_from(port: str, arguments: Sequence[str]) -> str:
    if any(word.startswith("-p") or word.lower().startswith("port=") for word in arguments):
        return "from OMPI_MCA_plm_rsh_args"
    return "the usual one" if port == "22" else "from ~/.ssh/config"
