"""Interprets an I/O profile: what slows training down, by how much, and what to change.

The verdict is a pure function of the measurements.
"""

import math
from typing import NamedTuple

from .facts import Phase, Profile
from .ram_disk import GIB, SetFiles, ram_disk_copy

# Training at this share of its speed on dummy images is compute-bound: the rest is below the variation between runs.
COMPUTE_BOUND = 0.95
# Decoding threads are idle while their finished batches are not taken, so threads that are busy for a larger share of
# their time than this are too slow. On shared machines threads are less busy at their limit, also in the reader alone.
SATURATED = 0.75
# Storage is the limit if threads spend at least this share of their busy time on reading; the second if bytes come from
# the disk, because the system reads ahead while a thread decodes.
READING_DOMINATES, READING_FROM_DISK = 0.5, 0.25
# If training is faster than the reader alone by this factor, the data set was not in memory at first. A reader alone
# that is faster than training by less than the second factor has no reserve.
OTHER_CONDITIONS, RESERVE = 1.1, 1.2
# Share of the cores used by other programs above which the figures are unreliable.
DISTURBED = 0.1
# Cores that a reader in Python keeps busy if the interpreter's lock limits it: one, beside what releases the lock. One
# that leaves more idle than the first number waits for files or a network.
LOCKED = (0.5, 1.3)
# Idle cores per rank that suffice for another thread.
FREE_CORE = 0.5
# A rank stands out if its threads are busier than the mean of the ranks by this factor.
OUTSTANDING = 1.5
# Threads beyond the mean need: batches differ in size, and a thread also waits for its core.
HEADROOM = 1.1


KINDS = {  # name -> title of the chart
    "compute": "compute-bound",  # training on the data set is as fast as without reading
    "storage": "I/O-bound by storage",  # slower: the decoding threads are too slow because they wait for files
    "python": "I/O-bound by Python's lock",  # slower: threads read by Python code, of which one runs at a time
    "threads": "I/O-bound by too few decoding threads",  # slower: they are too slow, and there are cores for more
    "cores": "too few cores for decoding",  # slower: they are too slow or take cores from the network; no core is idle
    "unclear": "unclear",  # slower, but none of these explains it
}


class Verdict(NamedTuple):
    """Verdict of a profile."""

    kind: str  # one of KINDS
    text: str  # the verdict for people
    lines: list[str]  # shell commands that belong to the text
    loss: float  # share of the speed on dummy images that training on the data set lacks, at least 0
    decode_threads: int | None = None  # recommended readers of a rank; None if another number would not help


def judge(profile: Profile, files: SetFiles | None, costly: tuple[str, ...] = ()) -> Verdict:
    """Returns the verdict on a data set with ``files``, None if it is no train.rec.

    ``costly`` are settings in use that slow down decoding, such as ``color_jittering``.
    """
    verdict, others = _judge(profile, files, costly), max(map(profile.taken_by_others, profile.phases))
    if others < DISTURBED:
        return verdict
    warning = f"Other programs used up to {percent(others)} of the cores: measure again without them. "
    return verdict._replace(text=warning + verdict.text)


def _judge(profile: Profile, files: SetFiles | None, costly: tuple[str, ...]) -> Verdict:
    training, rank = profile.training, profile.bottleneck
    loss = max(0.0, 1 - training.samples_per_second / profile.dummies.samples_per_second)
    if loss <= 1 - COMPUTE_BOUND:
        return _compute(profile, loss)
    # The threads of the busiest rank are at their limit if they are about as busy as in the reader alone.
    saturated = profile.busy_share(training, rank) >= SATURATED * profile.busy_share(profile.reader, rank)
    tally, on_host = training.tallies[rank], profile.on_host_of(training, rank)
    idle = profile.idle_cores(training, rank) / len(on_host)
    from_disk = (tally.disk_bytes or 0) >= tally.bytes / 2
    if profile.python and not from_disk and _is_locked(profile):
        return _python(profile, loss, idle)
    reading_dominates = tally.read_share >= (READING_FROM_DISK if from_disk else READING_DOMINATES)
    if reading_dominates and (saturated or tally.waited / tally.seconds >= loss / 2):
        return _storage(profile, loss, files, idle)
    if idle >= FREE_CORE:
        return _threads(profile, loss, idle) if saturated else _unclear(profile, loss)
    # A thread that reads waits without a core.
    decoding = sum((tally.busy_seconds - tally.read_seconds) / tally.seconds for tally in on_host)
    if saturated or decoding >= loss * profile.rank_hosts[rank].cores / 2:
        return _cores(profile, loss, costly)
    return _unclear(profile, loss)


def _is_locked(profile: Profile) -> bool:
    """Whether the reader alone, whose code is Python, was limited by the interpreter's lock, or by a lack of cores."""
    rank = profile.bottleneck
    tally = profile.reader.tallies[rank]
    cores = tally.cpu_seconds / tally.seconds
    waits = cores < LOCKED[0] and profile.idle_cores(profile.reader, rank) >= FREE_CORE
    return cores <= LOCKED[1] and not waits


def _needed_threads(profile: Profile) -> tuple[int, int]:
    """Returns the decoding threads of the busiest rank, and those it needs for the speed on dummy images."""
    threads = profile.rank_hosts[profile.bottleneck].threads
    faster = profile.dummies.samples_per_second / profile.training.samples_per_second
    return threads, max(threads + 1, math.ceil(threads * faster * HEADROOM))


def _of_rank(profile: Profile) -> str:
    """Returns " of rank R on HOST" for the rank that delays the others, "" if none stands out."""
    shares = [profile.busy_share(profile.training, rank) for rank in range(len(profile.rank_hosts))]
    rank = profile.bottleneck
    outstanding = shares[rank] >= OUTSTANDING * sum(shares) / len(shares)
    return f" of rank {rank} on {profile.rank_hosts[rank].host}" if outstanding else ""


def _compute(profile: Profile, loss: float) -> Verdict:
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


def _storage(profile: Profile, loss: float, files: SetFiles | None, idle: float) -> Verdict:
    threads, copy = None, "Copy" if files else "Put"
    if idle >= FREE_CORE:
        now, threads = _needed_threads(profile)
        copy = (
            f"Try {profile.readers}={threads} (now {now}): waiting uses no core, and more "
            f"threads request more files at once. Otherwise {copy.lower()}"
        )
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading, and the storage is the bottleneck: the decoding threads"
        f"{_of_rank(profile)} spend {percent(profile.training.tallies[profile.bottleneck].read_share)} of their time "
        f"waiting for files. {copy} "
    )
    if files is None:
        text += "the data set on a local SSD, or into a train.rec."
        if profile.python:
            text += " Python code that reads items waits for the lock of the interpreter as well: try decode_processes."
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


def _python(profile: Profile, loss: float, idle: float) -> Verdict:
    rank = profile.bottleneck
    alone, host = profile.reader.tallies[rank], profile.rank_hosts[rank]
    wanted = profile.dummies.samples_per_second / len(profile.rank_hosts)
    needed = max(1, math.ceil(wanted * alone.cpu_seconds / alone.images * HEADROOM))
    processes = min(needed, max(1, host.cores // len(profile.on_host_of(profile.training, rank))))
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading: the Python code that reads items holds the lock of the "
        f"interpreter, so that decoding threads wait for each other, and the training for them. Set "
        f"decode_processes={processes}"
    )
    text += "." if needed <= processes else f": this uses all cores; {needed} would be needed."
    if idle < FREE_CORE:
        text += f" {busy_cores(profile, profile.training)} cores are busy: more cores would help as well."
    return Verdict("python", text, [], loss, processes)


def _threads(profile: Profile, loss: float, idle: float) -> Verdict:
    now, needed = _needed_threads(profile)
    threads = min(needed, now + math.floor(idle + 1 - FREE_CORE))
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading, and decoding{_of_rank(profile)} is the bottleneck, "
        f"while only {busy_cores(profile, profile.training)} cores are busy. "
        f"Set {profile.readers}={threads} (now {now})"
    )
    text += "." if needed <= threads else f": this uses all idle cores; {needed} would be needed."
    return Verdict("threads", text, [], loss, threads)


def _cores(profile: Profile, loss: float, costly: tuple[str, ...]) -> Verdict:
    rank = profile.bottleneck
    now = f"{profile.readers}={profile.rank_hosts[rank].threads}"
    options = {
        "more cores": True,
        "a GPU for the network": not profile.gpu,
        "fewer ranks per host": len(profile.on_host_of(profile.training, rank)) > 1,
        f"less augmentation ({', '.join(costly)})": costly,
    }
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading: decoding and the network share too few cores "
        f"({busy_cores(profile, profile.training)} busy, {now} per rank). "
        f"Possible improvements: {', '.join(option for option, useful in options.items() if useful)}."
    )
    return Verdict("cores", text, [], loss)


def _unclear(profile: Profile, loss: float) -> Verdict:
    idle = percent(1 - profile.busy_share(profile.training, profile.bottleneck))
    text = (
        f"Unclear: training is {percent(loss)} slower on the data set than on dummy batches, although the decoding "
        f"threads are idle {idle} of the time and do not take cores from the network. Measure again for longer with "
        "--profile-seconds 30."
    )
    return Verdict("unclear", text, [], loss)


def busy_cores(profile: Profile, phase: Phase) -> str:
    """Formats the busy cores and all cores of the host of the busiest rank."""
    cores = profile.rank_hosts[profile.bottleneck].cores
    return f"{cores - profile.idle_cores(phase, profile.bottleneck):.1f} of {cores}"


def percent(share: float) -> str:
    """Formats a share in percent."""
    return f"{100 * share:.0f} %"
