"""Finds the problems of a host by comparing its facts with those of the other hosts."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from partial_fc.utils.check_rows import Row
from partial_fc.utils.text import plural, some

from .facts import CODE
from .job_requirements import Software, Training
from .probe import Probe


class Job(NamedTuple):
    """The hosts, and the training that they are checked for."""

    clone: str  # folder of the code, the same on every host
    probes: Sequence[Probe]
    local: Probe  # the probe of the machine that runs the check
    training: Training
    software: Software


def problems(probe: Probe, job: Job) -> list[Row]:
    """Returns a row for each problem of a host."""
    return [Row("bad", *row) for row in _problems(probe, job)]


def _problems(probe: Probe, job: Job) -> Iterator[tuple[str, str, str]]:
    name, install = probe.host.name, f"bash {job.clone}/setup-utils/{job.software.install}"
    if not probe.facts:
        yield "ssh", probe.error, f"ssh {name} true   must end at once, without a question or a message"
    elif not job.local.facts:
        yield "code", "cannot be compared with this machine, because its own facts cannot be read", ""
    elif not probe.facts["code"]:
        copy = f"rsync -a --exclude '.venv*' --exclude models {job.clone}/ {name}:{job.clone}/"
        yield "clone", f"there is none at {job.clone}", f"{copy}   then there: {install}"
    else:
        yield from _software(probe, job, install)
        yield from _network(probe, job)
        if probe.host.slots:
            yield from _data(probe, job)
            yield from _gpus(probe, job)


def _different(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    return [name for name in {**here, **there} if here.get(name) != there.get(name)]


def _software(probe: Probe, job: Job, install: str) -> Iterator[tuple[str, str, str]]:
    here, there = job.local.facts, probe.facts
    if different := sorted(_different(here["code"], there["code"])):
        copy = f"cd {job.clone} && rsync -aR {' '.join(CODE)} {probe.host.name}:{job.clone}/"
        yield "code", f"differs from this host: {some(different)}", f"git pull on both, or: {copy}"
    if not there["versions"]:
        yield "versions", f"{job.software.venv}: missing, or its installation did not finish", f"there: {install}"
    elif different := _different(here["versions"] or there["versions"], there["versions"]):
        rows = [(name, *(facts["versions"].get(name, "missing") for facts in (there, here))) for name in different]
        fix = f"the same Python and checkout on both, then there: rm -rf {job.clone}/{job.software.venv} && {install}"
        yield "versions", "; ".join(f"{name} {remote}, here {local}" for name, remote, local in rows), fix


def _network(probe: Probe, job: Job) -> Iterator[tuple[str, str, str]]:
    # The trainers, MPI and Horovod use hostnames to find the ranks that share a host.
    hostname = probe.facts["hostname"]
    for other in job.probes:
        if other is not probe and other.facts.get("hostname") == hostname:
            fix = "one machine: list it once, with all its slots; two: hostnamectl set-hostname ANOTHER on one of them"
            yield "hostname", f"{other.host.name} has the same hostname, {hostname}", fix
            break
    # Otherwise ranks would wait for a host that is behind a firewall.
    if error := probe.facts["unreachable"]:
        yield "network", f"{error}, though ssh works", "does a firewall allow only ssh? Open TCP between the hosts"


def _data(probe: Probe, job: Job) -> Iterator[tuple[str, str, str]]:
    """Compares file sizes with the first host that has all needed files, and checks for the output folder's marker."""
    needed, files = job.training.needed, probe.facts["data"]
    others = [other for other in job.probes if other.facts]
    complete = [other for other in others if all(isinstance(other.facts["data"][path], int) for path in needed)]
    fix = "set data_root= or rec= to its location"
    if not complete:
        yield "data", f"{needed[0]}: {files[needed[0]]}", fix
    elif different := _different(complete[0].facts["data"], files):
        path, other = different[0], complete[0]
        folder, sizes = os.path.dirname(path), (_size(files[path]), _size(other.facts["data"][path]))
        copy = f"on {other.host.name}: rsync -a {folder}/ {probe.host.name}:{folder}/"
        yield "data", f"{path}: {sizes[0]}, on {other.host.name} {sizes[1]}", f"{copy}, or {fix}"
    if job.local.facts["outputs"] and not probe.facts["outputs"]:  # if it is not writable here, training reports that
        off = "turn checkpoints off: checkpoint_every=0 checkpoint_options=minutes=0"
        fix = f"set models_root= to a folder of a file server, or {off}"
        yield "outputs", "the output folder is not shared with this host", fix


def _size(size: int | str) -> str:
    return size if isinstance(size, str) else plural(size, "byte")


def _gpus(probe: Probe, job: Job) -> Iterator[tuple[str, str, str]]:
    """MXNet for CUDA needs a GPU per rank. PyTorch trains on the CPU if no host has a GPU."""
    slots, gpus, versions = probe.host.slots, probe.facts["gpus"], probe.facts["versions"]
    on_cpus = versions.get("torch", "").endswith("+cpu") or not any(other.facts.get("gpus") for other in job.probes)
    needs_gpus = any(name.startswith("mxnet_cu") for name in versions) or ("torch" in versions and not on_cpus)
    if needs_gpus and gpus < slots:
        yield (
            "GPUs",
            f"{plural(gpus, 'GPU')} for {plural(slots, 'rank')}",
            f"list the host with {gpus} slots, or see there: nvidia-smi -L",
        )
