"""What the figures of an IO profile mean: what slows training, by how much, and what to change.

All of it is a pure function of what was measured.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .io_facts import Profile
from .io_ram_disk import GIB, SetFiles, ram_disk_lines, ram_disk_setting

# Training that reaches this share of its speed on dummy images gains nothing from faster reading: less than the
# figures of two runs differ.
ENOUGH = 0.95
# Decoding threads rest when the batches they keep ready are not taken: threads that are busy for more of their time
# than this share cannot follow. (The time that training waits would not tell: it hides behind the network's work.)
SATURATED = 0.75
# Threads that spend more of their busy time than this share in reading are held up by the storage.
READING_RULES = 0.5
# Where bytes come from the disk, a smaller share tells as much: the system reads ahead while a thread decodes.
READING_FROM_DISK = 0.25
# Share of the cores that other programs may take before the figures are not to be trusted.
NOTICEABLE = 0.1
# Threads to spare beyond the mean need: batches differ in size, and a thread also waits for its core.
HEADROOM = 1.1


class Verdict(NamedTuple):
    """``kind`` for programs (one of the keys of the table in :func:`judge`), sentences for people, lines for a shell.

    ``loss`` is the share of the speed on dummy images that training on the set lacks, at least 0; ``decode_threads``
    the number of threads a rank that is advised, None where another number would not help.
    """

    kind: str
    text: str
    lines: list[str]
    loss: float
    decode_threads: int | None = None


def judge(profile: Profile, files: SetFiles, costly: tuple[str, ...] = ()) -> Verdict:
    """The verdict.

    ===========  ==================================================================================
    kind         what it says
    ===========  ==================================================================================
    ``compute``  training on the set is as fast as without reading
    ``storage``  it is slower: the decoding threads cannot follow, because they wait for the files
    ``threads``  it is slower: the decoding threads cannot follow, and there are cores for more of them
    ``cores``    it is slower: the decoding threads cannot follow, or take cores from the network, and none is left
    ``unclear``  it is slower, but none of this explains it
    ===========  ==================================================================================

    Args:
        profile: what was measured.
        files: of the set.
        costly: settings in use that make decoding slower, such as ``color_jittering``.
    """
    verdict, others = _judge(profile, files, costly), max(profile.taken_by_others(phase) for phase in profile.phases)
    if others < NOTICEABLE:
        return verdict
    disturbed = f"Other programs kept up to {percent(others)} of the cores busy meanwhile: measure again without them. "
    return verdict._replace(text=disturbed + verdict.text)


def _judge(profile: Profile, files: SetFiles, costly: tuple[str, ...]) -> Verdict:
    loss = max(0.0, 1 - profile.training.samples_per_second / profile.dummies.samples_per_second)
    if loss <= 1 - ENOUGH:
        return _compute(profile, loss)
    saturated = profile.busiest_threads(profile.training) >= SATURATED
    if saturated and _reading_rules(profile):
        return _storage(profile, loss, files)
    threads, needed = _threads_for(profile)
    if saturated and threads > profile.threads:
        return _threads(profile, loss, threads, needed)
    if saturated or _takes_cores(profile, loss):
        return _cores(profile, loss, costly)
    return _unclear(profile, loss)


def _reading_rules(profile: Profile) -> bool:
    share, disk = profile.training.read_share or 0.0, profile.training.disk_bytes_per_second or 0.0
    from_disk = disk >= profile.training.bytes_per_second / 2
    return share >= (READING_FROM_DISK if from_disk else READING_RULES)


def _takes_cores(profile: Profile, loss: float) -> bool:
    """Whether decoding takes cores that the network misses, enough of them to be at least half of the loss."""
    _, cores = profile.cores_busy(profile.training)
    taken = profile.decoding_cores(profile.training)
    return profile.idle_cores_of_rank(profile.training) < 0.5 and taken >= loss * cores / 2


def _threads_for(profile: Profile) -> tuple[int, int]:
    """(Decoding threads a rank to advise, threads it would need): the first is bounded by the cores it can have."""
    need = profile.dummies.samples_per_second / len(profile.places)
    cost = profile.training.thread_seconds_per_image or 0.0
    needed = max(profile.threads + 1, math.ceil(need * cost * HEADROOM))
    idle = math.floor(profile.idle_cores_of_rank(profile.training) + 0.5)
    return min(needed, profile.cores_of_rank, profile.threads + idle), needed


def _compute(profile: Profile, loss: float) -> Verdict:
    ratio = profile.reader.samples_per_second / profile.dummies.samples_per_second
    engines = "more GPUs" if profile.gpu else "more cores or a GPU"
    text = (
        f"Compute-bound: training on the set runs at {percent(1 - loss)} of its speed on dummy images, and the reader "
        f"alone is {ratio:.1f} times as fast as training needs. Faster reading would change nothing; "
        f"a larger batch_size or {engines} would."
    )
    return Verdict("compute", text, [], loss)


def _storage(profile: Profile, loss: float, files: SetFiles) -> Verdict:
    training, gib = profile.training, files.ram_disk_gib
    disk = training.disk_bytes_per_second
    came = "" if disk is None else f", {disk / 1e6:.1f} MB/s come from the disk"
    text = (
        f"IO-bound: training loses {percent(loss)} to reading, and the files are the brake: the decoding threads spend "
        f"{percent(training.read_share or 0.0)} of their time waiting for them{came}. Put the set into memory, on each "
        f"host, and train with {ram_disk_setting(files)}:"
    )
    available = profile.memory_available
    if available is not None and available < gib * GIB:
        text = text[:-1] + (
            f". But only {available / GIB:.1f} GiB of memory are available where {gib} GiB are needed: that takes more "
            "memory, or a local SSD instead:"
        )
    return Verdict("storage", text, ram_disk_lines(files), loss)


def _threads(profile: Profile, loss: float, threads: int, needed: int) -> Verdict:
    busy, cores = profile.cores_busy(profile.training)
    text = (
        f"IO-bound: training loses {percent(loss)} to reading, and decoding is the brake, while only {busy:.1f} of "
        f"{cores} cores are busy. Set decode_threads={threads} (now {profile.threads})"
    )
    text += "." if needed <= threads else f": all the cores there are for it; {needed} would be needed."
    return Verdict("threads", text, [], loss, threads)


def _cores(profile: Profile, loss: float, costly: tuple[str, ...]) -> Verdict:
    busy, cores = profile.cores_busy(profile.training)
    ways = ["more cores"]
    if not profile.gpu:
        ways.append("a GPU for the network")
    if profile.ranks_of_host > 1:
        ways.append("fewer ranks on a host")
    if costly:
        ways.append(f"less augmentation ({', '.join(costly)})")
    if profile.busiest_threads(profile.training) >= SATURATED:
        text = (
            f"IO-bound: training loses {percent(loss)} to reading: decoding cannot follow, and no core is left for it"
        )
    else:
        text = (
            f"Short of cores: training loses {percent(loss)} to reading, because decoding takes cores from the network"
        )
    text += (
        f" ({busy:.1f} of {cores} are busy, with decode_threads={profile.threads} a rank). What would help: "
        f"{', '.join(ways)}."
    )
    return Verdict("cores", text, [], loss)


def _unclear(profile: Profile, loss: float) -> Verdict:
    text = (
        f"Unclear: training is {percent(loss)} slower on the set than on dummy images, though the decoding threads are "
        f"idle {percent(1 - profile.busiest_threads(profile.training))} of the time and do not take the cores that the "
        "network needs. Measure again, longer, with --profile-seconds 30."
    )
    return Verdict("unclear", text, [], loss)


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.0f} %"
