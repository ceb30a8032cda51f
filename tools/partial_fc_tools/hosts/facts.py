"""Collects the facts of a host and prints them. probe.py sends this file over ssh to the Python of the host.

It needs nothing but Python 3, not even a clone.
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
LIFE = 20  # seconds
CONNECT = 3  # seconds to connect to another machine
# Parts of the clone, and packages, that must be the same on all hosts.
CODE = "partial_fc mxnet pytorch setup-utils train_memory.py train.py config.sh config.py default.py".split()
PACKAGES = ("mxnet", "horovod", "mpi4py", "openmpi", "torch", "numpy")


def digests(clone: str) -> dict[str, str]:
    """Returns the digest of each program in the clone, by path."""
    paths = [path for part in CODE for path in (Path(clone, part), *Path(clone, part).rglob("*"))]
    programs = [path for path in paths if path.suffix in (".py", ".sh") and path.is_file()]
    return {str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in programs}


def versions(venv: str) -> dict[str, str]:
    """Returns versions of packages by the names of their files: importing MXNet would take longer than all else.

    Empty if the environment is missing, or its installation did not finish.
    """
    if not Path(venv, ".partial_fc", "ready").exists():
        return {}
    python = re.search(r"^version(?:_info)? = ([\d.]+)", Path(venv, "pyvenv.cfg").read_text(), re.M)
    found = {"Python": python.group(1) if python else "unknown"}
    for path in sorted(Path(venv).glob("lib/python3*/site-packages/*.dist-info")):
        name, _, version = path.stem.partition("-")
        if name in PACKAGES or name.startswith("mxnet_cu"):
            found[name] = version
    return found


def size(path: str) -> int | str:
    """Returns the bytes of a file, or why it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError as error:
        return str(error.strerror)


def gpus() -> int:
    """Returns the number of NVIDIA GPUs."""
    listed = b""
    # A broken driver may hang, one without persistence mode takes seconds, and some containers have no nvidia-smi.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, timeout=5).stdout
    # Its indented lines are parts of a GPU.
    return len(re.findall(rb"^GPU \d", listed, re.M)) or len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def network(address: str) -> str:
    """Returns the network that this host's interface with an IPv4 address is in; empty for the loopback interface."""
    if not address or ipaddress.ip_address(address).is_loopback:
        return ""
    found = ipaddress.ip_network("0.0.0.0/0")
    for line in Path(ROUTES).read_text().splitlines()[1:]:
        # Numbers in this processor's byte order.
        target, gateway, mask = (int(line.split()[column], 16) for column in (1, 2, 7))
        connected = ipaddress.ip_network((struct.pack("=I", target), bin(mask).count("1")))
        if not gateway and ipaddress.ip_address(address) in connected and connected.prefixlen > found.prefixlen:
            found = connected
    return str(found) if found.prefixlen else f"{address}/32"  # clouds route all packets through a gateway


class Listener(socketserver.ThreadingTCPServer):
    """Connects back to hosts that connect and send a port, and answers with the error, or a blank line if it works.

    The first host for which it works becomes the result of ``first``, and its process stays until ``finished`` is set.
    """

    daemon_threads = True
    request_queue_size = 128  # many hosts connect at once

    def __init__(self, first: Any = None):
        super().__init__(("", 0), self._Handler)
        self.first, self.finished = first, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class _Handler(socketserver.StreamRequestHandler):
        server: "Listener"

        def handle(self) -> None:
            if port := self.rfile.readline(10):  # a connection back sends none
                target = self.client_address[0], int(port)
                try:
                    socket.create_connection(target, CONNECT).close()
                except OSError as error:
                    message = f"{socket.gethostname()} cannot connect to {target[0]}:{target[1]}"
                    self.wfile.write(f"{message}: {error.strerror or error}\n".encode())
                else:
                    self.wfile.write(b"\n")
                    if self.server.first and not self.server.first.done():
                        self.server.first.set_result(target)
                        self.server.finished.wait()


def connection_error(address: str, port: int) -> str:
    """Connects to a Listener; returns why that, or its connection back, fails. This process stays until it hangs up."""
    try:
        caller = socket.create_connection((address, port), CONNECT)
        caller.settimeout(2 * CONNECT)
        caller.sendall(f"{Listener().server_address[1]}\n".encode())
        answer = caller.makefile()
        message = answer.readline().strip()
    except OSError as error:
        return f"this host cannot connect to {address}:{port}: {error.strerror or error}"
    caller.settimeout(None)
    threading.Thread(target=answer.read).start()
    return message


def main() -> None:
    """Answers a request: "token", "clone", "venv", "data" (paths), "marker" (in the output folder), "port", "first"."""
    signal.alarm(LIFE)
    request = json.loads(sys.argv[1])
    client, _, address, _ = os.environ.get("SSH_CONNECTION", "").split() or [""] * 4  # none on the machine of the check
    # The machine of the check, and the first other host once it is connected with that machine.
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
        print(f"reading the fact {name}", file=sys.stderr, flush=True)  # the last one is where it hangs or fails
        facts[name] = source()
    print(f"\n{request['token']} {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
