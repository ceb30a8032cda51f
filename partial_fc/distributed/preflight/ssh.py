"""The ssh command to another host: as mpirun runs it, but without prompts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# No one is there to answer a prompt; a host that does not answer within 5 seconds counts as unreachable.
QUIET = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


class Call(NamedTuple):
    """How ssh connects to a host, according to the user's configuration.

    Attributes:
        address: Argument of ssh: a name or user@name.
        hostname: The host that ssh connects to.
        user: The user that logs in.
        port: The port that ssh connects to.
        port_from: Where the port is set, for messages.
        proxied: Whether the connection goes through another host or program.
        arguments: The arguments that mpirun passes to ssh.
    """

    address: str
    hostname: str
    user: str
    port: str
    port_from: str
    proxied: bool
    arguments: list[str]

    @property
    def option(self) -> str:
        """The port as an ssh option for suggested commands; empty for the default port."""
        return "" if self.port == "22" else f"-p {self.port} "

    @property
    def login(self) -> str:
        """user@hostname."""
        return f"{self.user}@{self.hostname}"


def look_up(address: str, environ: Mapping[str, str], seconds: float = 5) -> Call:
    """Ask ssh itself how it would connect to an address.

    Raises:
        ValueError: ssh rejects its configuration; the message is ssh's.
        OSError: ssh cannot be started.
        subprocess.TimeoutExpired: ssh hangs.
    """
    arguments = shlex.split(environ.get("OMPI_MCA_plm_rsh_args", ""))
    command = ["ssh", "-G", *arguments, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=in_english(environ))
    if done.returncode:
        raise ValueError(done.stderr.strip())
    known = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    port = known.get("port", "22")
    proxied = any(known.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))
    hostname, user = known.get("hostname", address), known.get("user", "")
    return Call(address, hostname, user, port, _port_from(port, arguments), proxied, arguments)


def command_line(call: Call, script: str) -> list[str]:
    """The command that runs a script on the host. -v comes last: an earlier -q of the user would silence it."""
    return ["ssh", *QUIET, *call.arguments, "-v", call.address, script]


def in_english(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with which ssh prints English messages."""
    return {**environ, "LC_ALL": "C"}


def _port_from(port: str, arguments: Sequence[str]) -> str:
    if any(argument.startswith("-p") or argument.lower().startswith("port=") for argument in arguments):
        return "from OMPI_MCA_plm_rsh_args"
    return "the default" if port == "22" else "from ~/.ssh/config"
