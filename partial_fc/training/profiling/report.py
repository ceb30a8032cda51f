"""Report of an I/O profile: a table, a chart, and the figures as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from partial_fc.training.report import write_summary
from partial_fc.utils.atomic_io import replacing
from partial_fc.utils.tables import format_table
from partial_fc.utils.text import plural

from .facts import Phase, Profile
from .ram_disk import SetFiles
from .verdict import Verdict, judge, percent

# Settings that make decoding slow; the verdict names them if the decoding threads are too slow.
COSTLY = ("color_jittering", "jpeg_compression")

HEADER = ("", "samples/s", "ms/step", "waits for data", "threads", "files MB/s", "disk MB/s", "reading", "cores busy")
LEGEND = (
    "waits for data: ms per step, mean of the ranks.  threads: decoding threads of a rank.  files: requested by them.\n"
    "disk: actually read from the disk.  reading: share of the threads' busy time spent on files; the rest is decoding."
)


def format_profile(profile: Profile) -> str:
    """Returns the table: a line per phase, the rank that waits longest if it stands out, and a legend."""
    rows = [HEADER, *(_row(profile, phase) for phase in profile.phases)]
    return "\n".join([*format_table(rows, gap=3), *_worst_rank(profile), LEGEND])


def _row(profile: Profile, phase: Phase) -> tuple[str, ...]:
    busy, cores = profile.cores_busy(phase)
    trains, reads = phase is not profile.reader, phase is not profile.dummies
    disk, share = phase.disk_bytes_per_second, phase.read_share
    return (
        phase.name,
        f"{phase.samples_per_second:.1f}",
        f"{1000 * phase.step_seconds:.1f}",
        f"{1000 * phase.wait_seconds:.1f} ({percent(phase.wait_share)})" if trains else "-",
        f"{profile.threads}" if reads else "-",
        f"{phase.bytes_per_second / 1e6:.1f}" if reads else "-",
        "-" if disk is None or not reads else f"{disk / 1e6:.1f}",
        "-" if share is None or not reads else percent(share),
        f"{busy:.1f} of {cores}",
    )


def _worst_rank(profile: Profile) -> list[str]:
    training = profile.training
    rank, seconds, share = training.worst_wait
    # Small waits vary at random. The other ranks wait for this one inside the collectives.
    if len(profile.places) == 1 or share < 0.05 or seconds < 1.5 * training.wait_seconds:
        return []
    host = profile.places[rank].host
    wait = f"{1000 * seconds:.1f} ms per step ({percent(share)})"
    return [f"Rank {rank} on {host} delays the other ranks: it waits {wait} for data."]


def numbers(profile: Profile, verdict: Verdict) -> dict[str, Any]:
    """Returns all figures for JSON: of the phases, of each rank, of the places, and the verdict."""
    return {
        "verdict": verdict._asdict(),
        "ranks": len(profile.places),
        "phases": {phase.name: _figures(phase) for phase in profile.phases},
        "places": [place._asdict() for place in profile.places],
    }


_FIGURES = (
    "samples_per_second",
    "step_seconds",
    "wait_seconds",
    "wait_share",
    "bytes_per_second",
    "disk_bytes_per_second",
    "read_share",
)


def _figures(phase: Phase) -> dict[str, Any]:
    figures = {name: getattr(phase, name) for name in _FIGURES}
    return {**figures, "ranks": [tally._asdict() for tally in phase.tallies]}


_KINDS = {
    "compute": "compute-bound",
    "storage": "I/O-bound by storage",
    "threads": "I/O-bound by too few decoding threads",
    "cores": "too few cores for decoding",
    "unclear": "unclear",
}


def draw_chart(path: str, title: str, profile: Profile, verdict: Verdict) -> None:
    """Draws the speed of the phases, the parts of a step, and the use of the decoding threads.

    Args:
        path: PNG to write; it appears only when it is complete.
        title: Title of the figure.
        profile: The measurements.
        verdict: The verdict, whose kind is added to the title.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}: {_KINDS[verdict.kind]}")
    speed, step, threads = figure.subplots(1, 3)
    _draw_speed(speed, profile)
    _draw_step(step, profile)
    _draw_threads(threads, profile)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _draw_speed(axes, profile: Profile) -> None:
    names = [_wrapped(phase) for phase in profile.phases]
    bars = axes.bar(names, [phase.samples_per_second for phase in profile.phases], color=["C0", "C7", "C2"])
    axes.bar_label(bars, fmt="%.0f")
    axes.axhline(profile.dummies.samples_per_second, linestyle="--", color="gray", linewidth=1)
    axes.margins(y=0.12)  # space for the labels
    axes.set(ylabel="samples/s, all ranks", title="Speed")


def _draw_step(axes, profile: Profile) -> None:
    phases = (profile.dummies, profile.training)
    _draw_stack(
        axes,
        [_wrapped(phase) for phase in phases],
        {
            "computing": [1000 * (phase.step_seconds - phase.wait_seconds) for phase in phases],
            "waiting for data": [1000 * phase.wait_seconds for phase in phases],
        },
    )
    axes.set(ylabel="ms", title="Step")


def _draw_threads(axes, profile: Profile) -> None:
    phases = (profile.reader, profile.training)
    shares = [profile.thread_shares(phase) for phase in phases]
    names = ("decoding", "reading files", "idle")
    stacks = {name: [100 * share[i] for share in shares] for i, name in enumerate(names)}
    _draw_stack(axes, [_wrapped(phase) for phase in phases], stacks)
    axes.set(ylabel="% of the time", title=f"Decoding threads, {profile.threads} per rank")


def _draw_stack(axes, names: list[str], stacks: dict[str, list[float]]) -> None:
    bottom = [0.0] * len(names)
    for (label, heights), color in zip(stacks.items(), ("C2", "C3", "0.85")):
        axes.bar(names, heights, bottom=bottom, label=label, color=color, width=0.5)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_ylim(0, 1.25 * max(max(bottom), 1e-9))  # space for the legend
    axes.legend(loc="upper center", ncols=len(stacks), fontsize="small", frameon=False)


def _wrapped(phase: Phase) -> str:
    return phase.name.replace(", ", ",\n")


def write_report(
    folder: str, settings: Mapping[str, Any], files: SetFiles, profile: Profile, versions: Mapping[str, str]
) -> None:
    """Prints table and verdict, and writes ``io_profile.json`` and ``io_profile.png``.

    Args:
        folder: output folder.
        settings: of default.py.
        files: of the data set.
        profile: what was measured.
        versions: of Python and the framework.

    Raises:
        OSError: A file cannot be written.
    """
    path = os.path.join(folder, "io_profile")
    title = (
        f"{settings['network']} on {settings['dataset']}, batch_size {settings['batch_size']}, "
        f"{plural(len(profile.places), 'rank')}"
    )
    # Printed first, so that no later error loses the measurement.
    print(f"\n{title}\n\n{format_profile(profile)}\n", flush=True)
    verdict = judge(profile, files, tuple(name for name in COSTLY if settings[name]))
    print(verdict.text)
    for line in verdict.lines:
        print(f"    {line}")
    shown = {name: settings[name] for name in ("network", "dataset", "batch_size", "image_size", *COSTLY)}
    write_summary(path + ".json", {**shown, **numbers(profile, verdict), "versions": versions})
    draw_chart(path + ".png", title, profile, verdict)
    print(f"written to {path}.png and .json", flush=True)
