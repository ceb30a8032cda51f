"""Time of a training step on 1, 2 and 4 ranks and over slow links, beside what the planner's model predicts.

. setup-utils/env.sh
python benchmarks/links.py                             # 5 minutes, root: the table of docs/scale.md
python benchmarks/links.py --mbit 50                   # 20 s, root: two hosts, one link as it is and limited
python benchmarks/links.py --mbit 200 --delay 5        # and with 5 ms on the way
python benchmarks/links.py --out /tmp/links.json       # keeps what was measured ...
python benchmarks/links.py --from /tmp/links.json      # ... to be fitted and printed again; several are joined

The step is that of the real layer and backbone; ranks have a thread each. "Hosts" are network namespaces of this
machine (tests/virtual_hosts.py). The model's constants are fitted to 1 and 2 ranks and to two hosts without a limit,
and predict the rest. More ranks than cores take turns on them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet"), str(ROOT / "tests")]

from benchmarks.doc_tables import put  # noqa: E402
from partial_fc.planner import Case, plan  # noqa: E402
from partial_fc.planner.fitting import Measured, fit, predict  # noqa: E402
from partial_fc.planner.machine import GIGABIT, Machine  # noqa: E402
from partial_fc.planner.routes import open_mpi, spread  # noqa: E402
from partial_fc.utils.tables import markdown_table  # noqa: E402
from virtual_hosts import Hosts, unavailable  # noqa: E402

PAGE = ROOT / "docs" / "scale.md"
NETWORK = "small"
SIZES = ((2000, 32), (2000, 64), (40_000, 32), (40_000, 64))  # classes, images of a rank
NAMES = ("hosta", "hostb")
INTERFACE = "net0"  # of these hosts
TIMEOUT = 400
# Where the fit begins; what it does not find stays. Messages of Open MPI's TCP of 64 KiB and more ask first.
GUESS = Machine(
    backbone_flops=50e9,
    half_flops=50e9,
    operator_seconds=100e-6,
    layer_flops=50e9,
    memory_bandwidth=5e9,
    draw_seconds=30e-9,
    bus_bandwidth=5e9,
    inside_bandwidth=2e9,
    inside_latency=20e-6,
    network_bandwidth=0.5e9,
    network_latency=50e-6,
    eager_bytes=64 << 10,
    rings=False,
)
FITTED = ("backbone_flops", "operator_seconds", "layer_flops", "memory_bandwidth", "network_bandwidth")


class Condition(NamedTuple):
    """Where the ranks are, and what lies between them. 0 is no limit."""

    hosts: int
    of_host: int
    mbit: float = 0
    delay_ms: float = 0

    @property
    def ranks(self) -> int:
        return self.hosts * self.of_host

    @property
    def fitted(self) -> bool:
        """The constants are fitted to it."""
        return self.ranks <= 2 and not self.mbit and not self.delay_ms

    def __str__(self) -> str:
        where = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        where += f" on {self.hosts} hosts" if self.hosts > 1 else ""
        limit = f", {self.mbit:g} Mbit/s" if self.mbit else ""
        return where + limit + (f", {self.delay_ms:g} ms" if self.delay_ms else "")


CONDITIONS = (
    Condition(1, 1),
    Condition(1, 2),
    Condition(1, 4),
    Condition(2, 1),
    Condition(2, 1, mbit=1000),
    Condition(2, 1, mbit=200),
    Condition(2, 1, mbit=50),
    Condition(2, 1, delay_ms=5),
    Condition(2, 1, mbit=200, delay_ms=5),
    Condition(2, 2),
    Condition(2, 2, mbit=200),
)


# Measuring --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ranks_on(hosts: Hosts | None, where: Condition) -> Iterator[subprocess.Popen]:
    """Ranks that serve, started by mpirun on the first host."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [str(shutil.which("mpirun")), "-q", "-np", str(where.ranks)]
    for name in ("PATH", "OPAL_PREFIX", "OMP_NUM_THREADS"):
        command += ["-x", name] if name in environment else []
    if where.hosts > 1:
        command += ["-H", ",".join(f"{name}:{where.of_host}" for name in NAMES)]
        command += ["--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", INTERFACE]
    command += [sys.executable, str(Path(__file__).with_name("links_rank.py").resolve())]
    if where.hosts > 1:
        command = hosts.command(NAMES[0], command, ROOT)
    with tempfile.TemporaryFile("w+") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        process = subprocess.Popen(["timeout", str(TIMEOUT), *command], env=environment, **pipes)
        try:
            yield process
            process.communicate("\n", timeout=30)
        except RuntimeError as error:
            errors.seek(0)
            raise RuntimeError(f"{error}:\n{errors.read()}") from None
        finally:
            process.terminate()  # which timeout hands on
            process.wait()


def ask(process: subprocess.Popen, classes: int, batch: int, steps: int) -> tuple[float, float, float]:
    """(seconds of the fastest step, the median of the steps', bytes that a card sent in one)."""
    process.stdin.write(json.dumps([classes, batch, steps]) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the ranks ended with {process.wait()}")
    fastest, median, sent = json.loads(line)
    return fastest, median, sent


def measure(conditions: list[Condition], sizes, steps: int, rounds: int) -> list[dict]:
    """Every size under every condition, each of which has its turn in every round."""
    found: dict[tuple, list] = {}
    with contextlib.ExitStack() as stack:
        hosts = None
        if any(where.hosts > 1 for where in conditions):
            hosts = stack.enter_context(Hosts(NAMES, stack.enter_context(tempfile.TemporaryDirectory())))
        for where in [where for _ in range(rounds) for where in conditions]:
            if where.hosts > 1:  # before the ranks connect: what a change loses would slow TCP down for seconds
                hosts.limit(NAMES[1], mbit=where.mbit, delay_ms=where.delay_ms)
            with ranks_on(hosts, where) as process:
                for size in sizes:
                    found.setdefault((where, size), []).append(ask(process, *size, steps))
                    print(f"{where}, {size}: {found[where, size][-1]}", file=sys.stderr, flush=True)
    return [{"condition": where, "size": size, "rounds": rounds} for (where, size), rounds in found.items()]


def joined(runs: list[list[dict]]) -> list[dict]:
    """Runs of the same conditions as one of more rounds."""
    return [{**rows[0], "rounds": [values for row in rows for values in row["rounds"]]} for rows in zip(*runs)]


# Foretelling ------------------------------------------------------------------------------------------


def case_of(ranks: int, classes: int, batch: int) -> Case:
    return Case(classes, ranks, batch, network=NETWORK, device="cpu")


def as_measured(one: dict, guess: Machine) -> Measured:
    """For the model, by the fastest step: what else runs on this machine makes steps longer, never shorter.

    A delay comes on top of the machine's own; what it can move without a limit it cannot exceed with one.
    """
    where = Condition(*one["condition"])
    sharing = max(1.0, where.ranks / len(os.sched_getaffinity(0)))
    gigabits = min(where.mbit / 1000 or math.inf, guess.network_bandwidth / GIGABIT)
    latency = guess.network_latency + where.delay_ms / 1000
    network = (gigabits, latency) if where.mbit or where.delay_ms else (None, None)
    fastest = min(seconds for seconds, _, _ in one["rounds"])
    return Measured(case_of(where.ranks, *one["size"]), where.of_host, fastest, sharing, *network)


def crossing(case: Case, of_host: int) -> float:
    """Bytes that the model has leave a host in a step."""
    where = spread(case.ranks, of_host)
    moves = [move for move in plan(case).traffic if move.way == "network"]
    return sum(open_mpi(move.name.split()[0], move.out, where).crossing for move in moves)


def compared(found: list[dict], machine: Machine) -> list[str]:
    """A table of measured and predicted times."""
    rows = []
    for one in found:
        where, measured = Condition(*one["condition"]), as_measured(one, machine)
        predicted = predict(machine, measured)
        planned = crossing(measured.case, where.of_host)
        _, median, sent = np.median(one["rounds"], axis=0).tolist()
        rows.append(
            (
                f"{where}{', fitted' * where.fitted}",
                f"{measured.case.classes:,}, {measured.case.batch}",
                f"{planned / 1e3:,.0f}, {sent / 1e3:,.0f}" if planned else "-",
                f"{1e3 * measured.seconds:,.0f}",
                f"{1e3 * median:,.0f}",
                f"{1e3 * predicted:,.0f}",
                f"{predicted / measured.seconds - 1:+.0%}",
            )
        )
    heading = ("ranks and link", "classes, images of a rank", "kB over a card: planned, counted")
    return markdown_table((*heading, "fastest step, ms", "median", "model", "error"), rows)


def errors(found: list[dict], machine: Machine) -> list[str]:
    """Of what was not fitted, and the figures of the machine."""
    others = [as_measured(one, machine) for one in found if not Condition(*one["condition"]).fitted]
    sizes = sorted(abs(predict(machine, one) / one.seconds - 1) for one in others)
    figures = ", ".join(f"{name} {getattr(machine, name):.2g}" for name in FITTED)
    share = f"Of the {len(sizes)} rows that are not fitted, half are off by less than {np.median(sizes):.0%}"
    return ["", f"{share}, all by less than {math.ceil(100 * sizes[-1])}%. Fitted: {figures}."]


def check_one_link(mbit: float, delay_ms: float) -> None:
    """Two hosts, their link as it is and limited. The model takes the speed of this machine from the first."""
    conditions = [Condition(2, 1), Condition(2, 1, mbit, delay_ms)]
    found = measure(conditions, SIZES[:1], steps=4, rounds=1)
    machine = fit(GUESS, ("backbone_flops",), [as_measured(found[0], GUESS)])
    print("\n".join(compared(found, machine)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=0, help="of one link, instead of the whole table")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds on that link")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--doc", action="store_true", help="write the table into docs/scale.md")
    parser.add_argument("--out", help="a file for what was measured")
    parser.add_argument("--from", dest="source", nargs="+", help="such files, instead of measuring")
    args = parser.parse_args()
    if not args.source and unavailable():
        parser.error(unavailable())
    if args.mbit or args.delay:
        check_one_link(args.mbit, args.delay)
        return
    if args.source:
        found = joined([json.loads(Path(name).read_text()) for name in args.source])
    else:
        found = measure(list(CONDITIONS), SIZES, args.steps, args.rounds)
    if args.out:
        Path(args.out).write_text(json.dumps(found))
    fitted = [as_measured(one, GUESS) for one in found if Condition(*one["condition"]).fitted]
    machine = fit(GUESS, FITTED, fitted)
    lines = compared(found, machine) + errors(found, machine)
    print("\n".join(lines))
    if args.doc:
        put(PAGE, "links", "benchmarks/links.py", lines)


if __name__ == "__main__":
    main()
