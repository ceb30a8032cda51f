"""Report of an I/O profile: a table, a chart, and the figures as JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from partial_fc.utils.atomic_io import replace_file, replacing
from partial_fc.utils.config import parse_options
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import plural, printable, say

from .facts import Phase, Profile
from .ram_disk import SetFiles
from .verdict import KINDS, Verdict, busy_cores, judge, percent

# Options of the task that make decoding slow; the verdict may suggest to reduce them.
COSTLY = ("color_jittering", "jpeg_compression")

HEADER = ("", "samples/s", "ms/step", "waits for data", "threads", "disk MB/s", "reading", "cores busy")
LEGEND = (
    "waits for data: ms per step, mean of the ranks.  threads: decoding threads of a rank.  disk: read from the disk.\n"
    "reading: share of the threads' busy time spent on files; the rest is decoding.  cores: on the busiest rank's host."
)


def format_profile(profile: Profile) -> str:
    """Returns the table: a line per phase, and a legend."""
    rows, rank = [HEADER], profile.bottleneck
    for phase in profile.phases:
        trains, reads = phase is not profile.reader, phase is not profile.dummies
        disk = [tally.disk_bytes / tally.seconds for tally in phase.tallies if tally.disk_bytes is not None]
        milliseconds = 1000 * phase.step_seconds
        rows.append(
            (
                phase.name,
                f"{phase.samples_per_second:.1f}",
                f"{milliseconds:.1f}",
                f"{phase.wait_share * milliseconds:.1f} ({percent(phase.wait_share)})" if trains else "-",
                f"{profile.rank_hosts[rank].threads}" if reads else "-",
                f"{sum(disk) / 1e6:.1f}" if reads and len(disk) == len(phase.tallies) else "-",
                percent(phase.tallies[rank].read_share) if reads else "-",
                busy_cores(profile, phase),
            )
        )
    return "\n".join([*format_table(rows, gap=3), LEGEND])


def draw_chart(path: str, title: str, profile: Profile, verdict: Verdict) -> None:
    """Draws the speed of the phases, the parts of a step, and the use of the decoding threads, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    figure.suptitle(printable(f"{title}: {KINDS[verdict.kind]}"), parse_math=False)
    speed, step, threads = figure.subplots(1, 3)
    _draw_stack(speed, profile.phases, {"all ranks": [phase.samples_per_second for phase in profile.phases]})
    speed.bar_label(speed.containers[0], fmt="%.0f")
    speed.set(ylabel="samples/s", title="Speed")
    trained = (profile.dummies, profile.training)
    waiting = [1000 * phase.wait_share * phase.step_seconds for phase in trained]
    computing = [1000 * phase.step_seconds - wait for phase, wait in zip(trained, waiting)]
    _draw_stack(step, trained, {"computing": computing, "waiting for data": waiting})
    step.set(ylabel="ms", title="Step")
    read, rank = (profile.reader, profile.training), profile.bottleneck
    busy = [100 * profile.busy_share(phase, rank) for phase in read]
    reading = [share * phase.tallies[rank].read_share for share, phase in zip(busy, read)]
    decoding = [share - files for share, files in zip(busy, reading)]
    stacks = {"decoding": decoding, "reading files": reading, "idle": [max(0.0, 100 - share) for share in busy]}
    _draw_stack(threads, read, stacks)
    threads.set(ylabel="% of the time", title="Decoding threads, busiest rank")
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")


def _draw_stack(axes, phases: Sequence[Phase], stacks: dict[str, list[float]]) -> None:
    names, bottom = [phase.name.replace(", ", ",\n") for phase in phases], [0.0] * len(phases)
    for (label, heights), color in zip(stacks.items(), ("C2", "C3", "0.85")):
        axes.bar(names, heights, bottom=bottom, label=label, color=color, width=0.5)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_ylim(0, 1.25 * max(bottom))  # space for the legend
    axes.legend(loc="upper center", ncols=len(stacks), fontsize="small", frameon=False)


def write_report(
    folder: str, settings: Mapping[str, Any], files: SetFiles | None, profile: Profile, versions: Mapping[str, str]
) -> None:
    """Prints table and verdict, and writes ``io_profile.json`` and ``io_profile.png`` into the folder.

    Raises:
        OSError: A file cannot be written.
    """
    path = os.path.join(folder, "io_profile")
    title = (
        f"{settings['network']} on {settings['dataset']}, batch_size {settings['batch_size']}, "
        f"{plural(len(profile.rank_hosts), 'rank')}"
    )
    # Printed first: if writing fails, the measurement is not lost.
    print()
    say(title)
    print("", format_profile(profile), "", sep="\n", flush=True)
    options = parse_options("task_options", settings["task_options"])
    costs = {name: options.get(name, 0) for name in COSTLY}
    verdict = judge(profile, files, tuple(name for name in COSTLY if costs[name]))
    say(verdict.text)
    for line in verdict.lines:
        say(f"    {line}")
    figures = {
        **{name: settings[name] for name in ("network", "dataset", "batch_size", "image_size")},
        **costs,
        "verdict": verdict._asdict(),
        "ranks": len(profile.rank_hosts),
        "phases": {
            phase.name: {
                "samples_per_second": phase.samples_per_second,
                "step_seconds": phase.step_seconds,
                "wait_share": phase.wait_share,
                "ranks": [tally._asdict() for tally in phase.tallies],
            }
            for phase in profile.phases
        },
        "rank_hosts": [rank_host._asdict() for rank_host in profile.rank_hosts],
        "versions": versions,
    }
    replace_file(path + ".json", [(json.dumps(figures, indent=2) + "\n").encode()])
    draw_chart(path + ".png", title, profile, verdict)
    say(f"written to {path}.png and .json")
