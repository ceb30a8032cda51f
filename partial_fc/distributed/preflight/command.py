"""Checks whether hosts can train together, and prints what is wrong with each and how to fix it.

Arguments after -- are those of the training: they name its data set and output folder. The check logs in to the hosts
by ssh, also for PyTorch, whose trainer does not need that. It changes nothing on any host and takes at most 20 s. Exit
codes: 0; 1: a check failed; 2: invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partial_fc.utils.text import plural

from . import compare, facts, job_requirements, network
from .compare import Reference
from .hostfile import Host, read_hostfile, read_list
from .job_requirements import Training
from .probe import RemoteProbe, run_in_threads
from .row import Row, failed_checks, print_rows
from .software import TRAINERS, Software

EXAMPLE = """--hosts hosta:2,hostb:2
--hostfile hosts/two_machines -- --dataset emore --network r100
--hosts hosta:8,hostb:8 --trainer torch --port 1234 -- --network r50"""
_SOURCES = Path(__file__).resolve().parents[3]
CLONE = str(_SOURCES if (_SOURCES / "setup-utils").is_dir() else Path.cwd())  # an installed package is not in one
# Seconds from the start until all facts must be there, and until all hosts must have tried to connect to each other.
FACTS, NETWORK = 12, 17
# The checks that matter for a host that starts the training but runs no rank.
LAUNCHER_CHECKS = ("code", "settings", "versions", "hostname", "network")


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
    start = time.monotonic()
    if not os.path.isdir(os.path.join(CLONE, "setup-utils")):
        raise ValueError(f"{CLONE} is no clone of the project, which is compared between the hosts: run this in one")
    if args.training and not args.training[0].startswith("-") and "=" not in args.training[0]:
        raise ValueError(f"unknown argument {args.training[0]}: hosts are separated by commas, see --help")
    hosts = read_hostfile(args.hostfile) if args.hosts is None else read_list(args.hosts)
    software = TRAINERS[args.trainer]
    training = job_requirements.read(CLONE, software, args.training)
    local, probes = probe_all(hosts, training, software, args.port, start)
    # A host that only starts the training comes first.
    table = {probe: rows_of(probe, local, probes, training, software) for probe in dict.fromkeys([local, *probes])}
    if args.port and not probes[0].error:
        table[probes[0]].append(compare.port_row(args.port, probes[0].facts))
    report(table, probes, time.monotonic() - start, brief=bool(args.for_run))
    if args.for_run:
        write_result(args.for_run, local, probes, table)
    return 1 if any(map(failed_checks, table.values())) else 0


def probe_all(
    hosts: Sequence[Host], training: Training | None, software: Software, port: int, start: float
) -> tuple[RemoteProbe, list[RemoteProbe]]:
    """Probe this machine and all hosts.

    Returns:
        The probe of this machine, and one per host in order; this machine's is among them if it runs ranks.
    """
    local, probes = RemoteProbe(Host(socket.gethostname(), None)), [RemoteProbe(host) for host in hosts]
    queries = {local: local.query_local, **{probe: probe.query for probe in probes}}
    try:
        with make_request(training, software, port) as request:
            run_in_threads(lambda probe: queries[probe](request), queries, start + FACTS)
        insert_local(local, probes)
        network.try_connections(local, probes, start + NETWORK)
    finally:
        for probe in queries:
            probe.close()
    return local, probes


@contextlib.contextmanager
def make_request(training: Training | None, software: Software, port: int) -> Iterator[dict[str, object]]:
    """The request to facts.py. Meanwhile a marker file in the output folder shows which hosts share that folder."""
    models = training.models if training else os.path.join(CLONE, "models")
    token = f"pfc-{secrets.token_hex(8)}"
    marker = os.path.join(facts.nearest_folder(models), f".{token}")
    try:
        with open(marker, "x"):
            pass
    except OSError:
        marker = ""  # the row of the disk reports why
    request: dict[str, object] = {"token": token, "clone": CLONE, "models": models, "marker": marker}
    request.update(code=software.code, settings=compare.SETTINGS, packages=software.packages, port=port)
    request["venv"] = os.path.join(CLONE, software.venv)
    try:
        yield {**request, "data": [*training.needed, *training.beside] if training else []}
    finally:
        if marker:
            os.unlink(marker)


def insert_local(local: RemoteProbe, probes: list[RemoteProbe]) -> None:
    """Replace the probe of the host that is this machine by this machine's own."""
    same = [number for number, probe in enumerate(probes) if probe.local]
    for number in same[1:]:
        found = f"the same machine as {probes[same[0]].host.name}"
        probes[number].error = Row("bad", "name", found, "list it once, with all its slots")
    if same:
        local.host = probes[same[0]].host
        probes[same[0]] = local


def slots_of(probe: RemoteProbe) -> int:
    """Number of ranks of a host; like Open MPI, the number of its cores if the hostfile has none."""
    return probe.host.slots or probe.facts.get("cores", {}).get("cores", 1)


def rows_of(
    probe: RemoteProbe,
    local: RemoteProbe,
    probes: Sequence[RemoteProbe],
    training: Training | None,
    software: Software,
) -> list[Row]:
    """All rows of a host."""
    if probe.error:
        return [probe.error]
    complete = next((other for other in [*probes, local] if compare.has_data(other.facts, training)), None)
    data, name = (complete.facts["data"], complete.host.name) if complete else (None, "")
    reference = Reference(CLONE, local.facts or probe.facts, data, name, training, software)
    rows = compare.rows(probe.host.name, slots_of(probe), probe.facts, reference)
    if probe is not local:
        login = f"as {probe.facts.get('user', '?')} to {network.ssh_address(probe)}"
        rows.insert(0, Row("ok", "ssh", f"{login}, answered in {probe.seconds:.1f} s"))
        rows.append(compare.clock_row(probe.clock_offset, probe.clock_error))
    rows += hostname_rows(probe, [local, *probes])
    reached = network.network_row(probe, local, probes)
    rows += [reached] if reached else []
    return rows if probe in probes else [row for row in rows if row.what in LAUNCHER_CHECKS]


def hostname_rows(probe: RemoteProbe, probes: Sequence[RemoteProbe]) -> list[Row]:
    """A row if another host has the same hostname."""
    name = probe.facts.get("hostname")
    twins = [other.host.name for other in probes if other is not probe and name and other.facts.get("hostname") == name]
    if not twins:
        return []
    found = f"its hostname is {name}, as is that of {twins[0]}; MPI and Horovod treat them as one host"
    return [Row("bad", "hostname", found, "hostnamectl set-hostname ANOTHER on one of them")]


def report(table: dict[RemoteProbe, list[Row]], probes: Sequence[RemoteProbe], seconds: float, brief: bool) -> None:
    """Print the rows of all hosts; if brief, only warnings and the hosts with errors."""
    errors = {probe: failed_checks(rows) for probe, rows in table.items()}
    for probe, rows in table.items():
        if not brief or errors[probe]:
            print(f"{title(probe, probe in probes)}:")
            print_rows(rows)
            print()
        else:
            print_rows(row._replace(found=f"{probe.host.name}: {row.found}") for row in rows if row.mark == "warn")
    failed = [f"{probe.host.name} ({', '.join(names)})" for probe, names in errors.items() if names]
    if failed:
        print(f"Needs fixing: {'; '.join(failed)}. {len(table) - len(failed)} of {len(table)} hosts are ready.")
    else:
        print(f"Hosts: {len(probes)} checked in {seconds:.1f} s: {', '.join(probe.host.name for probe in probes)}")


def title(probe: RemoteProbe, listed: bool) -> str:
    """The heading of a host: its name, its ranks, and whether it is this machine."""
    known = probe.host.slots or probe.facts
    ranks = [plural(slots_of(probe), "rank")] if known and listed else []
    return ", ".join([probe.host.name, *ranks, *(["this machine"] if probe.local else [])])


def write_result(
    path: str, local: RemoteProbe, probes: Sequence[RemoteProbe], table: dict[RemoteProbe, list[Row]]
) -> None:
    """Write the networks and the usable hosts as shell assignments, for run.sh."""
    usable = [f"{probe.host.name}:{slots_of(probe)}" for probe in probes if not failed_checks(table[probe])]
    networks = network.subnets(local, probes)
    with open(path, "w") as stream:
        stream.write(f"PFC_NETWORKS={shlex.quote(','.join(networks))}\nPFC_USABLE={shlex.quote(','.join(usable))}\n")
