"""The checks of a host: each compares its facts with those of the others, and makes a row of the result."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from partial_fc.utils.check_rows import Row
from partial_fc.utils.text import amount, plural, some

from .facts import CODE
from .job_requirements import Software, Training
from .probe import Probe


class Job(NamedTuple):
    """What a host is checked for."""

    clone: str  # folder of the code, the same on every host
    probes: Sequence[Probe]
    local: Probe  # that of the machine that runs the check, which is one of them
    training: Training | None  # None if it is not known
    software: Software

    @property
    def install(self) -> str:
        """The command that makes the environment."""
        return f"bash {self.clone}/setup-utils/{self.software.install}"


def rows(probe: Probe, job: Job) -> list[Row]:
    """All rows of a host."""
    if probe.error:
        return [probe.error]
    if job.local.error:
        return [Row("bad", "code", "that of this machine cannot be read, to be compared with it")]
    if not probe.facts["code"]:
        copy = f"rsync -a --exclude '.venv*' --exclude models {job.clone}/ {probe.host.name}:{job.clone}/"
        return [Row("bad", "clone", f"there is none at {job.clone}", f"{copy}   then there: {job.install}")]
    found = [check(probe, job) for check in (CHECKS if probe.host.slots else LAUNCHER_CHECKS)]
    return [row for row in found if row is not None]


def check_ssh(probe: Probe, job: Job) -> Row | None:
    """The address by which ssh reached the host; ``probe.error`` tells why it could not."""
    return None if probe.local else Row("ok", "ssh", f"to {probe.address}")


def check_hostname(probe: Probe, job: Job) -> Row | None:
    """Ranks take those of a host with the same name for processes of their own host, as do MPI and Horovod."""
    name = probe.facts["hostname"]
    twins = [other.host.name for other in job.probes if other is not probe and other.facts.get("hostname") == name]
    if not twins:
        return None
    fix = "one machine: list it once, with all its slots; two: hostnamectl set-hostname ANOTHER on one of them"
    return Row("bad", "hostname", f"its hostname is {name}, as is that of {twins[0]}", fix)


def check_code(probe: Probe, job: Job) -> Row:
    """Whether the code and the settings are those of this machine."""
    own, other = job.local.facts["code"], probe.facts["code"]
    different = sorted(path for path in {*own, *other} if own.get(path) != other.get(path))
    if different:
        copy = f"cd {job.clone} && rsync -aR {' '.join(CODE)} {probe.host.name}:{job.clone}/"
        return Row("bad", "code", f"not as here: {some(different)}", f"git pull on both, or: {copy}")
    return Row("ok", "code", f"{len(own)} files in {job.clone}{'' if probe.local else ', as here'}")


def check_versions(probe: Probe, job: Job) -> Row:
    """Whether the environment of the trainer is complete and equal to that of this machine."""
    other, venv = probe.facts["versions"], job.software.venv
    own = job.local.facts["versions"] or other
    if not other:
        return Row("bad", "versions", f"{venv}: missing, or its installation did not finish", f"there: {job.install}")
    different = [name for name in {**own, **other} if own.get(name) != other.get(name)]
    if different:
        found = "; ".join(f"{name} {other.get(name, 'missing')}, here {own.get(name, 'missing')}" for name in different)
        fix = f"the same Python and checkout on both, then there: rm -rf {job.clone}/{venv} && {job.install}"
        return Row("bad", "versions", found, fix)
    named = ", ".join(f"{name} {version}" for name, version in other.items())
    return Row("ok", "versions", f"{named}{'' if probe.local else ', as here'}")


def check_data(probe: Probe, job: Job) -> Row | None:
    """Whether the data set can be read, and has the same sizes as on the first host that has all required files."""
    if job.training is None or not job.training.needed:
        return None
    files = probe.facts["data"]
    missing = [path for path in job.training.needed if isinstance(files[path], str)]
    needed = job.training.needed
    complete = [
        other
        for other in job.probes
        if "data" in other.facts and all(isinstance(other.facts["data"][path], int) for path in needed)
    ]
    if not complete:
        return Row("bad", "data", f"{missing[0]}: {files[missing[0]]}", "set data_root= or rec= to its location")
    own, there = complete[0].facts["data"], complete[0].host.name
    different = [*missing, *(path for path in files if files[path] != own[path])]
    if different:
        path, folder = different[0], os.path.dirname(different[0])
        found = f"{path}: {_size(files[path])}, on {there} {_size(own[path])}"
        copy = f"on {there}: rsync -a {folder}/ {probe.host.name}:{folder}/"
        return Row("bad", "data", found, f"{copy}, or set data_root= or rec= to its location")
    sizes = [size for size in files.values() if isinstance(size, int)]
    same = "" if probe is complete[0] else f", as on {there}"
    return Row("ok", "data", f"{plural(len(sizes), 'file')}, {amount(sum(sizes))}{same}")


def _size(size: int | str) -> str:
    return size if isinstance(size, str) else plural(size, "byte")


def check_gpus(probe: Probe, job: Job) -> Row:
    """Whether there are as many GPUs as ranks. PyTorch trains on the CPU of a host without any."""
    slots, gpus, versions = probe.host.slots, probe.facts["gpus"], probe.facts["versions"]
    found = f"{plural(gpus, 'GPU')} for {plural(slots, 'rank')}"
    needed = any(name.startswith("mxnet_cu") for name in versions) or (gpus and "torch" in versions)
    if slots > gpus and needed and not versions.get("torch", "").endswith("+cpu"):
        return Row("bad", "GPUs", found, f"{gpus} slots, or see there: nvidia-smi -L")
    return Row("ok", "GPUs", found)


def check_outputs(probe: Probe, job: Job) -> Row | None:
    """Whether the host sees the file that this machine has made in the output folder."""
    if probe.local or not job.local.facts["outputs"]:  # training reports a folder that cannot be written to
        return None
    if probe.facts["outputs"]:
        return Row("ok", "outputs", "the output folder is shared with this host")
    off = "checkpoint_every=0 checkpoint_options=minutes=0"
    fix = f"set models_root= to a folder of a file server, or turn checkpoints off: {off}"
    return Row("bad", "outputs", "the output folder is not shared with this host", fix)


def check_network(probe: Probe, job: Job) -> Row | None:
    """Whether the other hosts can connect to this one."""
    name = probe.host.name
    callers = [other for other in job.probes if name in other.targets]
    blocked = [other for other in callers if other.connections.get(name)]
    if not callers:
        return None
    if not probe.connections:
        return Row("bad", "network", "the host stopped answering", "run the check again")
    if not blocked:
        return Row("ok", "network", f"reached by {some([caller.host.name for caller in callers])}")
    address, port = blocked[0].targets[name]
    found = f"{some([caller.host.name for caller in blocked])} cannot reach it at {address}:{port}, though ssh works"
    fix = "does a firewall allow only ssh? Open all TCP ports between the hosts"
    return Row("bad", "network", f"{found}: {blocked[0].connections[name]}", fix)


def check_port(probe: Probe, job: Job) -> Row | None:
    """Whether the port on which the first host listens in training is free."""
    port = probe.facts["port"]
    return Row("bad", "port", port, "choose another, or see there: ss -tlnp") if isinstance(port, str) else None


LAUNCHER_CHECKS = (check_ssh, check_hostname, check_code, check_versions, check_network)  # for one that runs no rank
CHECKS = (*LAUNCHER_CHECKS, check_data, check_gpus, check_outputs, check_port)
