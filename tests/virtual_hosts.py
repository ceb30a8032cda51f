"""Several virtual hosts on one machine, each with its own address, name, sshd and processes.

A host is a set of Linux namespaces (net, uts, mount, pid, ipc), connected to a bridge by a veth pair. Hosts share all
files except /dev/shm, /run, ~/.ssh and /etc/hosts. They end with the process that created them.

    with Hosts(["hosta", "hostb"], folder) as hosts:
        hosts.run("hosta", ["ssh", "hostb", "hostname"])
        hosts.cut("hostb")

Needs root, iproute2, util-linux and OpenSSH (see unavailable()). For a shell on the first host:

    python tests/virtual_hosts.py hosta hostb
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SUBNET = "10.77.0"
PORT = 22
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "ssh", "ssh-keygen", "sshd")
SSHD = """\
Port {port}
HostKey {folder}/host_key
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
PrintMotd no
"""
# Arguments: folder of the host, home of its user, name, address.
BOOT = """\
set -e
hostname "$3"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd "$2/.ssh"
mount --bind "$1/ssh" "$2/.ssh"
mount --bind "$1/../hosts" /etc/hosts
mount --bind "$1/../resolv.conf" /etc/resolv.conf
ip link set lo up
ip addr add "$4/24" dev net0
ip link set net0 up
# As Docker does on every host of a cluster: the same address on each, which no other host can reach.
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
"""


def unavailable() -> str:
    """Returns why this machine cannot run virtual hosts; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if not which(tool)]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: openssh-server openssh-client iproute2 util-linux)"
    trial = "ip link add pfc0 type veth peer name pfc1 && ip link add pfc2 type bridge"
    done = subprocess.run(["unshare", "--net", "--mount", "bash", "-c", trial], capture_output=True, text=True)
    return f"cannot create network namespaces: {done.stderr.strip()}" if done.returncode else ""


class Hosts:
    """Hosts that reach each other by name.

    Args:
        names: names of the hosts.
        folder: for keys and configuration; must exist as long as the hosts.

    Attributes:
        address: name -> IPv4 address.
    """

    def __init__(self, names: Sequence[str], folder: str | os.PathLike):
        self.folder = Path(folder)
        self.address = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}
        self._ends: dict[str, str] = {name: f"port{number}" for number, name in enumerate(names, 1)}
        self._stack = contextlib.ExitStack()
        self._pids: dict[str, int] = {}
        self._switch = 0

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            self._write_common()
            switch = self._hold("--net")
            self._switch = switch.pid
            _wait_for_other_namespace(switch.pid)
            self._in_switch("ip link add br0 type bridge && ip link set br0 up && ip link set lo up")
            for name in self.address:
                self._boot(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, name: str, pid: int) -> bool:
        """Returns whether a process of this machine belongs to a host."""
        return os.stat(f"/proc/{pid}/ns/uts") == os.stat(f"/proc/{self._pids[name]}/ns/uts")

    def command(self, name: str, command: Sequence[object], cwd: str | os.PathLike = "/") -> list[str]:
        """Returns the command line that runs a command on a host."""
        inside = ["bash", "-c", 'cd "$0" && exec "$@"', str(cwd), *map(str, command)]
        return ["nsenter", "-t", str(self._pids[name]), "-m", "-u", "-i", "-n", "-p", *inside]

    def run(
        self,
        name: str,
        command: Sequence[object],
        cwd: str | os.PathLike = "/",
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess:
        """Runs a command on a host and returns its result; ``env`` replaces the environment of this process."""
        full = self.command(name, command, cwd)
        return subprocess.run(full, capture_output=True, text=True, timeout=timeout, env=env and dict(env))

    def cut(self, name: str) -> None:
        """Disconnects a host: its interface is down."""
        self._in_switch(f"ip link set {self._ends[name]} down")

    def drop(self, name: str) -> None:
        """Silently drops every packet to and from a host."""
        self._in_switch(f"ip link set {self._ends[name]} nomaster")

    def heal(self, name: str) -> None:
        """Reverts cut() or drop()."""
        self._in_switch(f"ip link set {self._ends[name]} master br0 up")

    def kill_sshd(self, name: str) -> None:
        """Kills a host's sshd and the processes of its connections."""
        self.run(name, ["pkill", "-KILL", "sshd"])

    def start_sshd(self, name: str, port: int = PORT) -> None:
        """Starts an sshd on a host."""
        config = self.folder / name / f"sshd_config_{port}"
        config.write_text(SSHD.format(port=port, folder=self.folder / name))
        done = self.run(name, [which("sshd"), "-f", config, "-E", self.folder / name / "sshd.log"])
        if done.returncode:
            raise RuntimeError(f"cannot start sshd on {name}: {done.stderr}")

    def power_off(self, name: str) -> None:
        """Ends a host as a power failure does: its processes cannot close their connections."""
        self.drop(name)
        os.kill(self._pids[name], 9)

    def _write_common(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.address.items())]
        Path(self.folder, "hosts").write_text("\n".join(lines) + "\n")
        Path(self.folder, "resolv.conf").write_text("")  # other names fail at once
        known = []
        for name, address in self.address.items():
            Path(self.folder, name, "ssh").mkdir(parents=True, exist_ok=True)
            _make_key(self.folder / name / "host_key")
            public = Path(self.folder, name, "host_key.pub").read_text().split()[:2]
            known.append(f"{name},{address} {' '.join(public)}\n")
        _make_key(self.folder / "user_key")
        for name in self.address:
            ssh = self.folder / name / "ssh"
            shutil.copy(self.folder / "user_key", ssh / "id_ed25519")
            shutil.copy(self.folder / "user_key.pub", ssh / "id_ed25519.pub")
            shutil.copy(self.folder / "user_key.pub", ssh / "authorized_keys")
            Path(ssh, "known_hosts").write_text("".join(known))

    def _boot(self, name: str) -> None:
        kinds = ("--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
        # bash is the first process of the host: it reaps orphans.
        outer = self._hold(*kinds, command=("bash", "-c", "while :; do sleep 1000 & wait; done"))
        self._pids[name] = _child_of(outer.pid)
        end = self._ends[name]
        self._in_switch(
            f"ip link add {end} type veth peer name net0 netns {self._pids[name]} && ip link set {end} master br0 up"
        )
        home = pwd.getpwuid(os.geteuid()).pw_dir
        command = ["bash", "-c", BOOT, "boot", self.folder / name, home, name, self.address[name]]
        done = self.run(name, command)
        if done.returncode:
            raise RuntimeError(f"cannot start host {name}: {done.stderr}")
        self.start_sshd(name)

    def _hold(self, *kinds: str, command: Sequence[str] = ("sleep", "infinity")) -> subprocess.Popen:
        """Starts a process in new namespaces, which ends with this process."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *kinds, *command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._stack.callback(_end, process)
        return process

    def _in_switch(self, script: str) -> None:
        command = ["nsenter", "-t", str(self._switch), "-n", "bash", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr.strip()}")


def which(tool: str) -> str | None:
    """Returns the path of a program, also in the sbin folders; None if it is not installed."""
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def _make_key(path: Path) -> None:
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=20)


def _wait_for_other_namespace(pid: int) -> None:
    _wait(lambda: os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a network namespace")


def _child_of(pid: int) -> int:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    _wait(lambda: path.read_text().strip() != "", "the first process of a host")
    child = int(path.read_text().split()[0])
    _wait(lambda: Path(f"/proc/{child}/comm").read_text().strip() == "bash", "the first process of a host")
    return child


def _wait(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"timed out waiting for {what}")
        time.sleep(0.01)


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def main() -> None:
    """Runs a shell on the first host."""
    names = sys.argv[1:] or ["hosta", "hostb"]
    reason = unavailable()
    if reason:
        sys.exit(f"error: {reason}")
    with tempfile.TemporaryDirectory() as folder, Hosts(names, folder) as hosts:
        print(f"{', '.join(f'{name} {address}' for name, address in hosts.address.items())}; exit ends them")
        subprocess.run(hosts.command(names[0], ["bash"], os.getcwd()))


if __name__ == "__main__":
    main()
