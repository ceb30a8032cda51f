"""Checks whether hosts can train together, and prints what is wrong with each and how to fix it.

Arguments after -- are those of the training: they name its data set and output folder. The check logs in to the hosts
by ssh, also for PyTorch, whose trainer does not need that. It changes nothing on any host and takes at most a minute.
Exit codes: 0; 1: a check failed; 2: invalid arguments.
"""

import argparse
import contextlib
import os
import resource
import secrets
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from partial_fc.utils.check_rows import Row, failed_checks, print_rows
from partial_fc.utils.text import plural, say

from . import checks, job_requirements
from .checks import Job
from .hostfile import Host, read_hostfile, read_list
from .job_requirements import TRAINERS, Software, Training
from .probe import Probe, in_parallel, networks, try_connections

EXAMPLE = """--hosts hosta:2,hostb:2
--hostfile deploy/hosts/two_machines -- --dataset emore --network r100
--hosts hosta:8,hostb:8 --trainer torch --port 1234 -- --network r50"""
_SOURCES = Path(__file__).resolve().parents[3]
CLONE = str(_SOURCES if (_SOURCES / "setup-utils").is_dir() else Path.cwd())  # an installed package is not in one
NAMES, FACTS, NETWORK = 5, 12, 7  # seconds to resolve the names, for all facts, and to connect to each other
FILES = 8  # open ones of a probe while its program starts, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hosts", metavar="LIST", help="hosts and their numbers of ranks: hosta:2,hostb:2")
    source.add_argument("--hostfile", metavar="FILE", help="the same from an Open MPI hostfile")
    parser.add_argument("--trainer", choices=TRAINERS, default="mxnet", help="which one will run (mxnet)")
    parser.add_argument(
        "--port", type=int, default=0, help="--master_port or that of --rdzv-endpoint, on the first of these hosts"
    )
    parser.add_argument(
        "--for-run", metavar="FILE", help="for run.sh: print only problems, and write the usable hosts to this file"
    )
    parser.add_argument("training", nargs="*", metavar="-- TRAINING", help="arguments of the training")


def run(args: argparse.Namespace) -> int:
    """Runs the check; returns the exit code."""
    if not os.path.isdir(os.path.join(CLONE, "setup-utils")):
        raise ValueError(f"{CLONE} is no clone of the project, which is compared between the hosts: run this in one")
    if args.training and not args.training[0].startswith("-") and "=" not in args.training[0]:
        raise ValueError(f"unknown argument {args.training[0]}: hosts are separated by commas, see --help")
    hosts = read_hostfile(args.hostfile) if args.hosts is None else read_list(args.hosts)
    software = TRAINERS[args.trainer]
    training = job_requirements.read(CLONE, software, args.training)
    probes = probe_all(hosts, training, software, args.port)
    job = Job(CLONE, probes, next(probe for probe in probes if probe.local), training, software)
    table = {probe: checks.rows(probe, job) for probe in probes}
    report(table, brief=bool(args.for_run))
    if args.for_run:
        write_result(args.for_run, table)
    return 1 if any(map(failed_checks, table.values())) else 0


def probe_all(hosts: Sequence[Host], training: Training | None, software: Software, port: int) -> list[Probe]:
    """Probe all hosts; this machine comes first if it is not among them.

    The first host listens on ``port`` in training, which is 0 if it is not known.
    """
    probes = [Probe(host) for host in hosts]
    first = probes[0]
    allow_open_files(FILES * len(probes) + 100)
    in_parallel(Probe.find, probes, NAMES)
    if not any(probe.local for probe in probes):
        probes.insert(0, Probe(Host(socket.gethostname(), 0), local=True))
    try:
        with make_request(training, software) as request:
            in_parallel(lambda probe: probe.query({**request, "port": port * (probe is first)}), probes, FACTS)
        for probe in probes:
            if not probe.facts:
                probe.give_up(FACTS)
        try_connections(probes, NETWORK)
    finally:
        for probe in probes:
            probe.close()
    return probes


def allow_open_files(wanted: int) -> None:
    """Raises the limit on open files of this process, if it is lower, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@contextlib.contextmanager
def make_request(training: Training | None, software: Software) -> Iterator[dict[str, object]]:
    """The request to facts.py. Meanwhile a marker file in the output folder shows which hosts share that folder."""
    training = training or Training([], [], "")
    token = f"pfc-{secrets.token_hex(8)}"
    folder = Path(CLONE, training.shared)
    folder = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # training creates the others
    marker = folder / f".{token}"
    with contextlib.suppress(OSError):
        if training.shared:
            marker.touch()
    data = [*training.needed, *training.beside]
    try:
        yield dict(token=token, clone=CLONE, venv=f"{CLONE}/{software.venv}", data=data, marker=str(marker))
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def report(table: Mapping[Probe, list[Row]], brief: bool) -> None:
    """Print the rows of all hosts; if brief, only of those with errors."""
    errors = {probe.host.name: failed_checks(rows) for probe, rows in table.items()}
    for probe, rows in table.items():
        name = probe.host.name
        if not brief or errors[name]:
            ranks = [plural(probe.host.slots, "rank")] if probe.host.slots else []
            say(f"{', '.join([name, *ranks, *(['this machine'] if probe.local else [])])}:")
            print_rows(rows)
            print()
    failed = [f"{name} ({', '.join(checks)})" for name, checks in errors.items() if checks]
    needs = f"Needs fixing: {'; '.join(failed)}. " if failed else ""
    say(f"{needs}{len(errors) - len(failed)} of {len(errors)} hosts are ready.")


def write_result(path: str, table: Mapping[Probe, list[Row]]) -> None:
    """Write the networks, the usable hosts and the number of their ranks as shell assignments, for run.sh."""
    usable = [probe.host for probe, rows in table.items() if probe.host.slots and not failed_checks(rows)]
    values = {
        "PFC_NETWORKS": ",".join(networks(list(table))),
        "PFC_USABLE": ",".join(f"{host.name}:{host.slots}" for host in usable),
        "PFC_RANKS": str(sum(host.slots for host in usable)),
    }
    Path(path).write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))
