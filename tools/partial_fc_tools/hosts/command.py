"""Checks whether hosts can train together, and prints the problems of each host and how to fix them.

Arguments after -- are passed on to the training, to find its data set and output folder. The check logs in to the hosts
by ssh, even for PyTorch, which trains without ssh. It changes nothing on any host and takes at most a minute. The exit
code is 0 if all hosts are ready, 1 if a check failed, and 2 for invalid arguments.
"""

import argparse
import contextlib
import os
import resource
import secrets
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from partial_fc.utils.check_rows import Row, failed_checks, print_rows
from partial_fc.utils.text import plural, say

from . import job_requirements
from .checks import Job, problems
from .facts import Listener
from .hostfile import Host, read_hostfile, read_list
from .job_requirements import TRAINERS, Software, Training
from .probe import Probe, networks

EXAMPLE = """--hosts hosta:2,hostb:2
--hostfile deploy/hosts/two_machines -- --dataset emore --network r100
--hosts hosta:8,hostb:8 --trainer torch -- --network r50"""
_SOURCES = Path(__file__).resolve().parents[3]
# If the package is installed outside of a clone, the command must run in one.
CLONE = str(_SOURCES if (_SOURCES / "setup-utils").is_dir() else Path.cwd())
FILES = 8  # maximum number of open files per probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hosts", metavar="LIST", help="hosts and their numbers of ranks: hosta:2,hostb:2")
    source.add_argument("--hostfile", metavar="FILE", help="Open MPI hostfile with the hosts")
    parser.add_argument("--trainer", choices=TRAINERS, default="mxnet", help="trainer to check for (default: mxnet)")
    parser.add_argument("--for-run", metavar="FILE", help="write the usable hosts to this file, for run.sh")
    parser.add_argument("training", nargs="*", metavar="-- TRAINING", help="arguments of the training")


def run(args: argparse.Namespace) -> int:
    """Runs the check; returns the exit code."""
    if not os.path.isdir(os.path.join(CLONE, "setup-utils")):
        raise ValueError(f"{CLONE} is not a clone of the project: run this in one, because the check compares its code")
    if args.training and not args.training[0].startswith("-") and "=" not in args.training[0]:
        raise ValueError(f"unknown argument {args.training[0]}: hosts are separated by commas, see --help")
    hosts = read_hostfile(args.hostfile) if args.hosts is None else read_list(args.hosts)
    software = TRAINERS[args.trainer]
    training = job_requirements.read(CLONE, software, args.training)
    probes = probe_all(hosts, training, software)
    job = Job(CLONE, probes, next(probe for probe in probes if probe.local), training, software)
    table = {probe: problems(probe, job) for probe in probes}
    report(table)
    if args.for_run:
        write_result(args.for_run, table)
    return 1 if any(table.values()) else 0


def probe_all(hosts: Sequence[Host], training: Training, software: Software) -> list[Probe]:
    """Returns the probes of all hosts. If this machine is not one of them, its probe is added as the first."""
    allow_open_files(FILES * (len(hosts) + 1) + 100)
    with ThreadPoolExecutor(len(hosts) + 1) as pool:
        probes = list(pool.map(Probe, hosts))
        if not any(probe.local for probe in probes):
            probes.insert(0, Probe(Host(socket.gethostname(), 0)))
        address: Future[Any] = Future()  # address and port of the first host that is connected with this machine
        listener = Listener(address)
        with make_request(training, software, listener.server_address[1]) as request:
            # Ranks also connect to each other, and a firewall may be between two hosts that both reach this machine. So
            # the first other host stays until all the others have connected to it.
            first, *others = sorted(probes, key=lambda probe: probe.local)
            collected = pool.submit(first.collect, request)
            wait([collected, address], return_when=FIRST_COMPLETED)
            request["first"] = [] if address.cancel() else [address.result()]
            list(pool.map(lambda probe: probe.collect(request), others))
            listener.finished.set()
            collected.result()
    return probes


def allow_open_files(wanted: int) -> None:
    """Raises this process's limit on open files to ``wanted``, or as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    permitted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, permitted), hard))


@contextlib.contextmanager
def make_request(training: Training, software: Software, port: int) -> Iterator[dict[str, object]]:
    """Yields the request to facts.py. Meanwhile, a marker file shows which hosts share the output folder."""
    token = f"pfc-{secrets.token_hex(8)}"
    folder = Path(CLONE, training.shared)
    folder = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # training creates the rest
    marker = folder / f".{token}"
    request = {"token": token, "clone": CLONE, "venv": f"{CLONE}/{software.venv}", "marker": str(marker)}
    with contextlib.suppress(OSError):
        if training.shared:
            marker.touch()
    try:
        yield {**request, "data": [*training.needed, *training.optional], "port": port, "first": []}
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def report(table: Mapping[Probe, list[Row]]) -> None:
    """Prints each host, followed by its problems."""
    for probe, rows in table.items():
        about = [probe.host.name, plural(probe.host.slots, "rank")]
        about += [plural(probe.facts["gpus"], "GPU")] if probe.facts else []
        say(f"{', '.join([*about, *(['this machine'] if probe.local else [])])}: {'' if rows else 'ready'}".rstrip())
        print_rows(rows)
    failed = [f"{probe.host.name} ({', '.join(failed_checks(rows))})" for probe, rows in table.items() if rows]
    needs = f"Needs fixing: {'; '.join(failed)}. " if failed else ""
    say(f"{needs}{len(table) - len(failed)} of {len(table)} hosts are ready.")


def write_result(path: str, table: Mapping[Probe, list[Row]]) -> None:
    """Writes the networks, the usable hosts and their total number of ranks as shell assignments, for run.sh."""
    usable = [probe.host for probe, rows in table.items() if probe.host.slots and not rows]
    values = {
        "PFC_NETWORKS": ",".join(networks(list(table))),
        "PFC_USABLE": ",".join(f"{host.name}:{host.slots}" for host in usable),
        "PFC_RANKS": str(sum(host.slots for host in usable)),
    }
    Path(path).write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))
