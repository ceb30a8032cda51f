"""Interprets an I/O profile: what slows training down, by how much, and what to change."""

import math
from typing import NamedTuple

from .facts import Phase, Profile
from .ram_disk import GIB, SetFiles, ram_disk_copy

# Training that reaches this share of its speed on dummy batches is compute-bound: the rest varies between runs.
COMPUTE_BOUND = 0.95
# Decoding threads idle when nobody takes their finished batches. In the reader alone they work at their limit, which
# on shared machines is below 100 % of the time. Threads that reach this share of the limit in training are too slow.
SATURATED = 0.75
# Storage is the bottleneck if threads spend at least this share of their busy time reading. The second value applies to
# bytes from the disk, because the system reads ahead while a thread decodes.
READING_DOMINATES, READING_FROM_DISK = 0.5, 0.25
# If training is faster than the reader alone by the first factor, the data set was not in memory at first. A reader
# alone that is faster than training by less than the second factor has no reserve.
OTHER_CONDITIONS, RESERVE = 1.1, 1.2
# Share of the cores used by other programs that makes the figures unreliable.
DISTURBED = 0.1
# Python code that holds the interpreter's lock, or the lock around a Dataset, keeps at most the second number of cores
# busy. Below the first number, with idle cores left, it is not the lock: the code waits for files or a network.
FEWEST_LOCKED_CORES, MOST_LOCKED_CORES = 0.5, 1.3
# Idle cores per rank that are enough for another thread.
FREE_CORE = 0.5
# A rank stands out if its threads are busier than the ranks' mean by this factor.
OUTSTANDING = 1.5
# Factor for threads beyond the average need: batches differ in size, and threads wait for cores.
HEADROOM = 1.1

KINDS = {  # name -> title of the chart; all but the first are slower on the data set than without reading
    "compute": "compute-bound",
    "storage": "I/O-bound by storage",  # the decoding threads wait for files
    "python": "I/O-bound by Python code in one thread",  # the decoding threads wait for each other
    "threads": "I/O-bound by too few decoding threads",  # and there are idle cores for more
    "cores": "too few cores for decoding",  # no core is idle
    "unclear": "unclear",  # none of these explains it
}


class Verdict(NamedTuple):
    """Verdict on a profile."""

    kind: str  # one of KINDS
    text: str  # the verdict for people
    lines: list[str]  # shell commands that belong to the text
    loss: float  # share of the speed on dummy batches that training on the data set lacks, at least 0
    decode_threads: int | None = None  # recommended readers per rank; None if another number would not help


def judge(profile: Profile, files: SetFiles | None, costly: tuple[str, ...] = ()) -> Verdict:
    """Returns the verdict on the measurements.

    Args:
        profile: the measurements.
        files: of the data set; None if it is not a train.rec.
        costly: settings in use that slow down decoding, such as ``color_jittering``.
    """
    loss = max(0.0, 1 - profile.training.samples_per_second / profile.dummies.samples_per_second)
    if loss <= 1 - COMPUTE_BOUND:
        verdict = _not_slower(profile, loss)
    else:
        verdict = _slower(profile, loss, files, costly)
    others = max(map(profile.taken_by_others, profile.phases))
    if others < DISTURBED:
        return verdict
    warning = f"Other programs used up to {percent(others)} of the cores: measure again without them. "
    return verdict._replace(text=warning + verdict.text)


def _not_slower(profile: Profile, loss: float) -> Verdict:
    # All ranks wait for the slowest reader.
    alone = min(tally.images / tally.seconds for tally in profile.reader.tallies) * len(profile.rank_hosts)
    ratio = alone / profile.dummies.samples_per_second
    if profile.training.samples_per_second > OTHER_CONDITIONS * alone:
        advice = (
            "the data set was not in the page cache at first, but was during training. Reading is not a bottleneck "
            "while it stays there."
        )
    elif ratio < RESERVE:
        advice = "with a faster network reading would become the bottleneck."
    else:
        hardware = "more GPUs" if profile.gpu else "more cores or a GPU"
        advice = f"faster reading would not help; a larger batch_size or {hardware} would."
    text = (
        f"Compute-bound: training on the data set runs at {percent(1 - loss)} of its speed on dummy batches. The "
        f"reader alone runs at {ratio:.3g} times the speed that training needs: {advice}"
    )
    return Verdict("compute", text, [], loss)


def _slower(profile: Profile, loss: float, files: SetFiles | None, costly: tuple[str, ...]) -> Verdict:
    training, reader, rank = profile.training, profile.reader, profile.bottleneck
    tally, alone, host = training.tallies[rank], reader.tallies[rank], profile.rank_hosts[rank]
    on_host = profile.on_host_of(training, rank)
    idle = profile.idle_cores(training, rank) / len(on_host)  # cores per rank
    from_disk = (tally.disk_bytes or 0) >= tally.bytes / 2
    if profile.python and not from_disk:
        cores = alone.cpu_seconds / alone.seconds
        waits_for_files = cores < FEWEST_LOCKED_CORES and profile.idle_cores(reader, rank) >= FREE_CORE
        if cores <= MOST_LOCKED_CORES and not waits_for_files:
            return _python(profile, loss, idle)
    busy_share = profile.busy_share(training, rank)
    saturated = busy_share >= SATURATED * profile.busy_share(reader, rank)
    reading_dominates = tally.read_share >= (READING_FROM_DISK if from_disk else READING_DOMINATES)
    needed = max(host.threads + 1, math.ceil(host.threads / (1 - loss) * HEADROOM))
    if reading_dominates and (saturated or tally.waited / tally.seconds >= loss / 2):
        return _storage(profile, loss, files, needed if idle >= FREE_CORE else None)
    lost, busy = percent(loss), busy_cores(profile, training)
    if idle >= FREE_CORE and saturated:
        threads = min(needed, host.threads + math.floor(idle + 1 - FREE_CORE))
        limit = "." if needed <= threads else f": this uses all idle cores; {needed} would be needed."
        text = (
            f"I/O-bound: training loses {lost} to reading, and decoding{_of_rank(profile)} is the bottleneck, while "
            f"only {busy} cores are busy. Set {profile.readers_setting}={threads} (now {host.threads}){limit}"
        )
        return Verdict("threads", text, [], loss, threads)
    # Decoding takes cores from the network; a thread that reads waits without using a core.
    decoding = sum((tally.busy_seconds - tally.read_seconds) / tally.seconds for tally in on_host)
    if idle < FREE_CORE and (saturated or decoding >= loss * host.cores / 2):
        options = {
            "more cores": True,
            "a GPU for the network": not profile.gpu,
            "fewer ranks per host": len(on_host) > 1,
            f"less augmentation ({', '.join(costly)})": costly,
        }
        text = (
            f"I/O-bound: training loses {lost} to reading: decoding and the network share too few cores "
            f"({busy} busy, {profile.readers_setting}={host.threads} per rank). "
            f"Possible improvements: {', '.join(option for option, applies in options.items() if applies)}."
        )
        return Verdict("cores", text, [], loss)
    text = (
        f"Unclear: training is {lost} slower on the data set than on dummy batches, although the decoding threads are "
        f"idle {percent(1 - busy_share)} of the time and do not take cores from the network. Measure again for longer "
        "with --profile-seconds 30."
    )
    return Verdict("unclear", text, [], loss)


def _python(profile: Profile, loss: float, idle: float) -> Verdict:
    rank = profile.bottleneck
    alone, host = profile.reader.tallies[rank], profile.rank_hosts[rank]
    images_per_second = profile.dummies.samples_per_second / len(profile.rank_hosts)
    needed = max(1, math.ceil(images_per_second * alone.cpu_seconds / alone.images * HEADROOM))
    processes = min(needed, max(1, host.cores // len(profile.on_host_of(profile.training, rank))))
    limit = "." if needed <= processes else f": this uses all cores; {needed} would be needed."
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading: the Python code that reads items runs in one thread at "
        f"a time, so decoding threads wait for each other. Set decode_processes={processes}{limit}"
    )
    if idle < FREE_CORE:
        text += f" {busy_cores(profile, profile.training)} cores are busy: more cores would help as well."
    return Verdict("python", text, [], loss, processes)


def _storage(profile: Profile, loss: float, files: SetFiles | None, threads: int | None) -> Verdict:
    """Returns the verdict that the storage is too slow; ``threads``: readers needed, None without idle cores."""
    rank, advice = profile.bottleneck, "Copy" if files else "Put"
    if profile.python:
        threads = max(2, math.ceil(HEADROOM / (1 - loss)))
        advice = (
            f"Try decode_processes={threads} or more: processes read at the same time, but threads read a Dataset one "
            f"at a time. Otherwise {advice.lower()}"
        )
    elif threads:
        advice = (
            f"Try {profile.readers_setting}={threads} (now {profile.rank_hosts[rank].threads}): waiting uses no core, "
            f"and more threads request more files at once. Otherwise {advice.lower()}"
        )
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading, and the storage is the bottleneck: the decoding threads"
        f"{_of_rank(profile)} spend {percent(profile.training.tallies[rank].read_share)} of their time waiting for "
        f"files. {advice} "
    )
    if files is None:
        text += "the data set on a local SSD, or convert it to a train.rec."
        return Verdict("storage", text, [], loss, threads)
    gib, (setting, lines) = files.ram_disk_gib, ram_disk_copy(files)
    text += f"the data set into memory on each host, and train with {setting}"
    available = min(rank_host.memory_available for rank_host in profile.rank_hosts)
    if available < gib * GIB:
        text += (
            f". This needs {gib} GiB of memory, but only {available / GIB:.1f} GiB are free: add memory "
            "or use a local SSD instead"
        )
    return Verdict("storage", f"{text}:", lines, loss, threads)


def _of_rank(profile: Profile) -> str:
    """Returns " of rank R on HOST" for a rank that delays the others, "" if none stands out."""
    shares = [profile.busy_share(profile.training, rank) for rank in range(len(profile.rank_hosts))]
    rank = profile.bottleneck
    outstanding = shares[rank] >= OUTSTANDING * sum(shares) / len(shares)
    return f" of rank {rank} on {profile.rank_hosts[rank].host}" if outstanding else ""


def busy_cores(profile: Profile, phase: Phase) -> str:
    """Formats the busy cores and all cores of the busiest rank's host."""
    cores = profile.rank_hosts[profile.bottleneck].cores
    return f"{cores - profile.idle_cores(phase, profile.bottleneck):.1f} of {cores}"


def percent(share: float) -> str:
    """Formats a share in percent."""
    return f"{100 * share:.0f} %"
