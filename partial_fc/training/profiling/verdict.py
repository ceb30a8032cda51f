"""Interprets an I/O profile: what slows training down, by how much, and what to change.

The verdict is a pure function of the measurements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .facts import Profile, Tally
from .ram_disk import GIB, SetFiles, ram_disk_lines, ram_disk_setting

# Training at this share of its speed on dummy images is compute-bound: the rest is below the variation between runs.
COMPUTE_BOUND = 0.95
# Decoding threads are idle while their finished batches are not taken, so threads that are busy for a larger share of
# their time than this are too slow. On shared machines threads may be less busy and still be at their limit: then they
# are as fast (SIMILAR) as the reader alone, or training waits long for them.
SATURATED = 0.75
SIMILAR = 0.9
# Waiting alone is weak evidence: part of it is hidden behind the network's work, and if the threads are idle for more
# than half of their time, training waits for something else.
WAITING, WORKING = 0.25, 0.5
# If training is faster than the reader alone by this factor, the reader was measured under other conditions. A reader
# alone that is faster than training by less than the second factor has no reserve.
OTHER_CONDITIONS, RESERVE = 1.1, 1.2
# Storage is the limit if threads spend at least this share of their busy time on reading.
READING_DOMINATES = 0.5
# The same if bytes come from the disk, because the system reads ahead while a thread decodes.
READING_FROM_DISK = 0.25
# Share of the cores used by other programs above which the figures are unreliable.
DISTURBED = 0.1
# Idle cores per rank that suffice for another thread.
FREE_CORE = 0.5
# A rank stands out if its threads are busier than the mean of the ranks by this factor.
OUTSTANDING = 1.5
# Threads beyond the mean need: batches differ in size, and a thread also waits for its core.
HEADROOM = 1.1


class Verdict(NamedTuple):
    """Verdict of a profile.

    Attributes:
        kind: One of the kinds in `judge`.
        text: The verdict for people.
        lines: Shell commands that belong to the text.
        loss: Share of the speed on dummy images that training on the data set lacks, at least 0.
        decode_threads: Recommended decoding threads per rank; None if another number would not help.
    """

    kind: str
    text: str
    lines: list[str]
    loss: float
    decode_threads: int | None = None


def judge(profile: Profile, files: SetFiles, costly: tuple[str, ...] = ()) -> Verdict:
    """Returns the verdict.

    ===========  =========================================================================================
    kind         meaning
    ===========  =========================================================================================
    ``compute``  training on the data set is as fast as without reading
    ``storage``  slower: the decoding threads are too slow because they wait for files
    ``threads``  slower: the decoding threads are too slow, and there are cores for more threads
    ``cores``    slower: the decoding threads are too slow or take cores from the network; no core is idle
    ``unclear``  slower, but none of these explains it
    ===========  =========================================================================================

    Args:
        profile: The measurements.
        files: Files of the data set.
        costly: Settings in use that slow down decoding, such as ``color_jittering``.
    """
    verdict, others = _judge(profile, files, costly), max(profile.taken_by_others(phase) for phase in profile.phases)
    if others < DISTURBED:
        return verdict
    warning = f"Other programs used up to {percent(others)} of the cores: measure again without them. "
    return verdict._replace(text=warning + verdict.text)


def _judge(profile: Profile, files: SetFiles, costly: tuple[str, ...]) -> Verdict:
    loss = max(0.0, 1 - profile.training.samples_per_second / profile.dummies.samples_per_second)
    if loss <= 1 - COMPUTE_BOUND:
        return _compute(profile, loss)
    saturated = _saturated(profile)
    reading = _reading_dominates(profile.training.tallies[profile.bottleneck])
    if reading and (saturated or _waits_explain(profile, loss)):
        return _storage(profile, loss, files)
    if saturated and profile.idle_cores_of_rank(profile.training, profile.bottleneck) >= FREE_CORE:
        return _threads(profile, loss)
    if saturated or _takes_cores(profile, loss):
        return _cores(profile, loss, costly, saturated)
    return _unclear(profile, loss)


def _saturated(profile: Profile) -> bool:
    """Returns whether the decoding threads of the busiest rank are at their limit."""
    rank = profile.bottleneck
    alone, training = profile.reader.tallies[rank], profile.training.tallies[rank]
    busy, busy_alone = profile.busy_share(profile.training, rank), profile.busy_share(profile.reader, rank)
    return (
        busy >= SATURATED
        or SIMILAR * alone.speed <= training.speed <= OTHER_CONDITIONS * alone.speed
        or 0 < SIMILAR * busy_alone <= busy
        or (training.wait_share >= WAITING and busy >= WORKING)
    )


def _reading_dominates(tally: Tally) -> bool:
    from_disk = (tally.disk_bytes or 0) >= tally.bytes / 2
    return tally.read_share >= (READING_FROM_DISK if from_disk else READING_DOMINATES)


def _waits_explain(profile: Profile, loss: float) -> bool:
    """Returns whether waiting for data is at least half of the loss."""
    return profile.training.tallies[profile.bottleneck].wait_share >= loss / 2


def _takes_cores(profile: Profile, loss: float) -> bool:
    """Returns whether decoding takes cores from the network that account for at least half of the loss."""
    training = profile.training
    return any(
        profile.idle_cores_of_rank(training, rank) < FREE_CORE
        and profile.decoding_cores(training, rank) >= loss * place.cores / 2
        for rank, place in enumerate(profile.places)
    )


def _needed_threads(profile: Profile) -> int:
    """Returns the decoding threads that the busiest rank needs for the speed on dummy images."""
    threads = profile.places[profile.bottleneck].threads
    faster = profile.dummies.samples_per_second / profile.training.samples_per_second
    return max(threads + 1, math.ceil(threads * faster * HEADROOM))


def _of_rank(profile: Profile) -> str:
    """Returns " of rank R on HOST" for the rank that delays the others, "" if none stands out."""
    shares = [profile.busy_share(profile.training, rank) for rank in range(len(profile.places))]
    rank = profile.bottleneck
    if shares[rank] < OUTSTANDING * sum(shares) / len(shares):
        return ""
    return f" of rank {rank} on {profile.places[rank].host}"


def _compute(profile: Profile, loss: float) -> Verdict:
    need = profile.dummies.samples_per_second
    # All ranks wait for the slowest reader.
    alone = min(tally.speed for tally in profile.reader.tallies) * len(profile.places)
    ratio = alone / need
    hardware = "more GPUs" if profile.gpu else "more cores or a GPU"
    text = f"Compute-bound: training on the data set runs at {percent(1 - loss)} of its speed on dummy images, "
    if profile.training.samples_per_second > OTHER_CONDITIONS * alone:
        text += (
            f"although the reader alone ran at {ratio:.1f} times the speed that training needs: the data set was not "
            "in the page cache at first, but was during training. Reading is not a bottleneck while it stays there."
        )
    elif ratio < RESERVE:
        text += (
            f"but the reader alone runs at only {ratio:.2f} times the speed that training needs: with a faster network "
            "reading would become the bottleneck."
        )
    else:
        text += (
            f"and the reader alone runs at {ratio:.1f} times the speed that training needs. Faster reading would not "
            f"help; a larger batch_size or {hardware} would."
        )
    return Verdict("compute", text, [], loss)


def _storage(profile: Profile, loss: float, files: SetFiles) -> Verdict:
    rank, gib, threads = profile.bottleneck, files.ram_disk_gib, None
    tally = profile.training.tallies[rank]
    disk = profile.training.disk_bytes_per_second or 0.0
    from_disk = f", {disk / 1e6:.1f} MB/s from the disk" if disk >= 0.05e6 else ""
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading, and the storage is the bottleneck: the decoding threads"
        f"{_of_rank(profile)} spend {percent(tally.read_share)} of their time waiting for files{from_disk}. "
    )
    if profile.idle_cores_of_rank(profile.training, rank) >= FREE_CORE:
        threads = _needed_threads(profile)
        text += (
            f"Try decode_threads={threads} (now {profile.places[rank].threads}): waiting uses no core, and more "
            "threads request more files at once. Otherwise copy"
        )
    else:
        text += "Copy"
    text += f" the data set into memory on each host, and train with {ram_disk_setting(files)}"
    if profile.memory_available < gib * GIB:
        text += (
            f". This needs {gib} GiB of memory, but only {profile.memory_available / GIB:.1f} GiB are free: add memory "
            "or use a local SSD instead"
        )
    text += ":"
    return Verdict("storage", text, ram_disk_lines(files), loss, threads)


def _threads(profile: Profile, loss: float) -> Verdict:
    rank = profile.bottleneck
    now, needed = profile.places[rank].threads, _needed_threads(profile)
    threads = min(needed, now + math.floor(profile.idle_cores_of_rank(profile.training, rank) + 1 - FREE_CORE))
    busy, cores = profile.cores_busy(profile.training, rank)
    text = (
        f"I/O-bound: training loses {percent(loss)} to reading, and decoding{_of_rank(profile)} is the bottleneck, "
        f"while only {busy:.1f} of {cores} cores are busy. Set decode_threads={threads} (now {now})"
    )
    text += "." if needed <= threads else f": this uses all idle cores; {needed} would be needed."
    return Verdict("threads", text, [], loss, threads)


def _cores(profile: Profile, loss: float, costly: tuple[str, ...], saturated: bool) -> Verdict:
    options = ["more cores"]
    if not profile.gpu:
        options.append("a GPU for the network")
    if profile.ranks_of_host > 1:
        options.append("fewer ranks per host")
    if costly:
        options.append(f"less augmentation ({', '.join(costly)})")
    if saturated:
        text = f"I/O-bound: training loses {percent(loss)} to reading: decoding is too slow, and no core is idle"
    else:
        text = f"Too few cores: training loses {percent(loss)} to reading because decoding takes cores from the network"
    busy, cores = profile.cores_busy(profile.training, profile.bottleneck if saturated else None)
    text += (
        f" ({busy:.1f} of {cores} cores busy, decode_threads={profile.threads} per rank). Possible improvements: "
        f"{', '.join(options)}."
    )
    return Verdict("cores", text, [], loss)


def _unclear(profile: Profile, loss: float) -> Verdict:
    idle = percent(1 - profile.busy_share(profile.training, profile.bottleneck))
    text = (
        f"Unclear: training is {percent(loss)} slower on the data set than on dummy images, although the decoding "
        f"threads are idle {idle} of the time and do not take cores from the network. Measure again for longer with "
        "--profile-seconds 30."
    )
    return Verdict("unclear", text, [], loss)


def percent(share: float) -> str:
    """Formats a share in percent."""
    return f"{100 * share:.0f} %"
