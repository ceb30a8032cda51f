"""The table of `check.sh --hosts`: can these hosts train together? What is wrong with each, and the fix.

    bash setup-utils/check.sh --hosts hosta:2,hostb:2
    bash setup-utils/check.sh --hostfile hosts/two_machines -- --dataset emore --network r100

Words after -- are those of the training: they name its data set and the folder of its outputs. Changes nothing on any
host and takes 20 s at most. Exit codes: 0, 1: something needed is bad, 2: the words cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partial_fc.utils.text import plural

from . import compare, facts, job_requirements, network
from .compare import Reference
from .hostfile import Host, read_hostfile, read_list
from .job_requirements import Training
from .probe import RemoteProbe, side_by_side
from .row import Row, failed_checks, print_rows

CLONE = str(Path(__file__).resolve().parents[3])
# Seconds from the start until all facts are there, and until all hosts have tried to reach each other.
FACTS, NETWORK = 12, 17
UNLISTED = (
    "code",
    "settings",
    "versions",
    "hostname",
    "network",
)  # what matters of a host that only starts the training


def main(argv: Sequence[str]) -> int:
    began = time.monotonic()
    place = argv.index("--") if "--" in argv else len(argv)
    given = parse_args(argv[:place])
    try:
        hosts = read_hostfile(given.hostfile) if given.hosts is None else read_list(given.hosts)
        training = job_requirements.read(CLONE, argv[place + 1 :])
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    here, visits = visit_all(hosts, training, began)
    # A host that only starts the training comes first.
    found = {visit: rows_of(visit, here, visits, training) for visit in dict.fromkeys([here, *visits])}
    show(found, visits, time.monotonic() - began, brief=bool(given.for_run))
    if given.for_run:
        write_result(given.for_run, here, visits, found)
    return 1 if any(failed_checks(rows) for rows in found.values()) else 0


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    name = "bash setup-utils/check.sh"
    parser = argparse.ArgumentParser(name, None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--hosts", metavar="LIST", help="hosts and how many ranks each runs: hosta:2,hostb:2")
    which.add_argument("--hostfile", metavar="FILE", help="the same as a hostfile of Open MPI")
    parser.add_argument(
        "--for-run", metavar="FILE", help="for run.sh: says little, and writes there what it is to know"
    )
    return parser.parse_args(argv)


def visit_all(hosts: Sequence[Host], training: Training | None, began: float) -> tuple[RemoteProbe, list[RemoteProbe]]:
    """(the visit to this machine, one for each host in order); this machine's is among them if it is to train."""
    here, visits = RemoteProbe(Host(socket.gethostname(), None)), [RemoteProbe(host) for host in hosts]
    asks = {here: here.begin_here, **{visit: visit.begin for visit in visits}}
    try:
        with questions(training) as asked:
            side_by_side(lambda visit: asks[visit](asked), asks, began + FACTS)
        put_in_place(here, visits)
        network.try_each_other(here, visits, began + NETWORK)
    finally:
        for visit in asks:
            visit.end()
    return here, visits


@contextlib.contextmanager
def questions(training: Training | None) -> Iterator[dict[str, object]]:
    """What facts.py is asked. Meanwhile a file lies where the outputs go: do the hosts see it?"""
    models = training.models if training else os.path.join(CLONE, "models")
    word = f"pfc-{secrets.token_hex(8)}"
    token = os.path.join(facts.nearest_folder(models), f".{word}")
    try:
        with open(token, "x"):
            pass
    except OSError:
        token = ""  # the row of the disk says why
    asked: dict[str, object] = {"word": word, "clone": CLONE, "models": models, "token": token}
    asked.update(code=compare.CODE, settings=compare.SETTINGS)
    try:
        yield {**asked, "data": [*training.needed, *training.beside] if training else []}
    finally:
        if token:
            os.unlink(token)


def put_in_place(here: RemoteProbe, visits: list[RemoteProbe]) -> None:
    """Puts the visit to this machine where the list names it."""
    same = [number for number, visit in enumerate(visits) if visit.here]
    for number in same[1:]:
        fix = "give it one name, with all its slots"
        visits[number].trouble = Row("bad", "name", f"the same machine as {visits[same[0]].host.name}", fix)
    if same:
        here.host = visits[same[0]].host
        visits[same[0]] = here


def slots_of(visit: RemoteProbe) -> int:
    """Ranks; a hostfile that does not say means the cores, as Open MPI takes it."""
    return visit.host.slots or visit.facts.get("cores", {}).get("cores", 1)


def rows_of(
    visit: RemoteProbe, here: RemoteProbe, visits: Sequence[RemoteProbe], training: Training | None
) -> list[Row]:
    if visit.trouble:
        return [visit.trouble]
    whole = next((one for one in [*visits, here] if compare.has_data(one.facts, training)), None)
    data, name = (whole.facts["data"], whole.host.name) if whole else (None, "")
    standard = Reference(CLONE, here.facts or visit.facts, data, name, training)
    rows = compare.rows(visit.host.name, slots_of(visit), visit.facts, standard)
    if visit is not here:
        where = f"as {visit.facts.get('user', '?')} to {network.server(visit)}"
        rows.insert(0, Row("ok", "ssh", f"{where}, all answered in {visit.seconds:.1f} s"))
        rows.append(compare.clock(visit.offset, visit.doubt))
    rows += own_name(visit, [here, *visits])
    reached = network.row(visit, here, visits)
    rows += [reached] if reached else []
    return rows if visit in visits else [row for row in rows if row.what in UNLISTED]


def own_name(visit: RemoteProbe, visits: Sequence[RemoteProbe]) -> list[Row]:
    """A row where another host calls itself the same."""
    name = visit.facts.get("hostname")
    twins = [one.host.name for one in visits if one is not visit and name and one.facts.get("hostname") == name]
    if not twins:
        return []
    found = f"calls itself {name}, as {twins[0]} does; MPI and Horovod take them for one"
    return [Row("bad", "hostname", found, "hostnamectl set-hostname ANOTHER on one of them")]


def show(found: dict[RemoteProbe, list[Row]], visits: Sequence[RemoteProbe], seconds: float, brief: bool) -> None:
    """The table; when brief, only what is not as it should be."""
    worst = {
        visit: next((m for m in ("bad", "warn") if m in {row.mark for row in rows}), "ok")
        for visit, rows in found.items()
    }
    names = ", ".join(visit.host.name for visit in visits)
    for visit, rows in found.items():
        if not brief or worst[visit] == "bad":
            print(f"{title(visit, visit in visits)}:")
            print_rows(rows)
            print()
        elif worst[visit] == "warn":
            print_rows(row._replace(found=f"{visit.host.name}: {row.found}") for row in rows if row.mark == "warn")
    bad = [
        f"{visit.host.name} ({', '.join(failed_checks(rows))})" for visit, rows in found.items() if failed_checks(rows)
    ]
    if bad:
        print(f"Needs fixing: {'; '.join(bad)}. {len(found) - len(bad)} of {len(found)} hosts are ready.")
    else:
        print(f"Hosts: {len(visits)} checked in {seconds:.1f} s: {names}")


def title(visit: RemoteProbe, listed: bool) -> str:
    known = visit.host.slots or visit.facts
    ranks = [plural(slots_of(visit), "rank")] if known and listed else []
    return ", ".join([visit.host.name, *ranks, *(["this machine"] if visit.here else [])])


def write_result(
    path: str, here: RemoteProbe, visits: Sequence[RemoteProbe], found: dict[RemoteProbe, list[Row]]
) -> None:
    """Writes what run.sh is to know as assignments of the shell."""
    usable = [f"{visit.host.name}:{slots_of(visit)}" for visit in visits if not failed_checks(found[visit])]
    networks = network.networks(here, visits)
    with open(path, "w") as stream:
        stream.write(f"PFC_NETWORKS={shlex.quote(','.join(networks))}\nPFC_USABLE={shlex.quote(','.join(usable))}\n")
