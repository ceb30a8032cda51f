"""Slurm on virtual hosts, see virtual_hosts.py: a controller on the first, a node of two CPUs on each.

Needs slurm-wlm and munge (see unavailable()).
"""

import os
import time
from pathlib import Path

from virtual_hosts import Hosts, which

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch")
# A job that is requeued waits until its credential has expired. The spool folder is short, because it has sockets.
CONF = """\
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerParameters=batch_sched_delay=0
NodeName={nodes} CPUs=2
PartitionName=main Nodes=ALL Default=YES
"""


def unavailable() -> str:
    """Returns why this machine cannot run Slurm; empty if it can."""
    absent = [tool for tool in TOOLS if not which(tool)]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm munge)" if absent else ""


class Slurm:
    """Starts the daemons; they end with the hosts.

    Args:
        hosts: running.
        folder: for keys, settings, logs and state.
    """

    def __init__(self, hosts: Hosts, folder: Path):
        self._hosts, (self._first, *_) = hosts, hosts.address
        folder.mkdir()
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(CONF.format(first=self._first, nodes=",".join(hosts.address), folder=folder))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.environment = {"PATH": path, "HOME": os.environ["HOME"], "SLURM_CONF": str(folder / "slurm.conf")}
        for host in hosts.address:
            self._start(host, "mkdir", "-p", "/run/munge")
            files = [f"--{name}-file={folder / name}-{host}" for name in ("log", "seed")]
            self._start(host, "munged", "--force", f"--key-file={folder / 'munge.key'}", *files)
        self._start(self._first, "slurmctld", "-c")
        for host in hosts.address:
            self._start(host, "slurmd", "-c", "-N", host)
        end = time.monotonic() + 120
        while self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(hosts.address)):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()
            time.sleep(0.2)

    def run(self, *command: object, cwd: str | os.PathLike = "/", **environment: str) -> str:
        """Runs a command on the first host and returns its output."""
        return self._start(self._first, *command, cwd=cwd, **environment)

    def _start(self, host: str, *command: object, cwd: str | os.PathLike = "/", **environment: str) -> str:
        done = self._hosts.run(host, command, cwd, env={**self.environment, **environment})
        assert done.returncode == 0, (host, command, done.stdout, done.stderr)
        return done.stdout
