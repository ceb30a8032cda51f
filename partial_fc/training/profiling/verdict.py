"""What the figures of an IO profile mean: what slows training, by how much, and what to change.

All of it is a pure function of what was measured.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .facts import Profile, Tally
from .ram_disk import GIB, SetFiles, ram_disk_lines, ram_disk_setting

# Training that reaches this share of its speed on dummy images gains nothing from faster reading: less than the
# figures of two runs differ.
ENOUGH = 0.95
# Decoding threads rest when the batches they keep ready are not taken: threads that are busy for more of their time
# than this share cannot follow. On machines that others use they may be less busy and still give all they can:
# then they do as much (SAME) as when they read alone, or training waits for them for long.
SATURATED = 0.75
SAME = 0.9
# Waiting alone proves little: some of it hides behind the network's work, and it may be for something else than the
# threads where these rest for more than half of their time.
WAITING, WORKING = 0.25, 0.5
# A reader alone this much slower than training needs was measured in other conditions; so much faster is no reserve.
OTHER, RESERVE = 1.1, 1.2
# Threads that spend more of their busy time than this share in reading are held up by the storage.
READING_RULES = 0.5
# Where bytes come from the disk, a smaller share tells as much: the system reads ahead while a thread decodes.
READING_FROM_DISK = 0.25
# Share of the cores that other programs may take before the figures are not to be trusted.
NOTICEABLE = 0.1
# Idle cores of a rank that are enough for another thread.
ROOM = 0.5
# A rank whose threads are so many times as busy as those of all ranks on average stands out.
OUTSTANDING = 1.5
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
    saturated = _saturated(profile)
    if _reading_rules(profile.training.tallies[profile.brake]) and (saturated or _waits_explain(profile, loss)):
        return _storage(profile, loss, files)
    if saturated and profile.idle_cores_of_rank(profile.training, profile.brake) >= ROOM:
        return _threads(profile, loss)
    if saturated or _takes_cores(profile, loss):
        return _cores(profile, loss, costly, saturated)
    return _unclear(profile, loss)


def _saturated(profile: Profile) -> bool:
    """Whether the decoding threads of the busiest rank give all they can."""
    rank = profile.brake
    alone, training = profile.reader.tallies[rank], profile.training.tallies[rank]
    busy, busy_alone = profile.busy_share(profile.training, rank), profile.busy_share(profile.reader, rank)
    return (
        busy >= SATURATED
        or SAME * alone.speed <= training.speed <= OTHER * alone.speed
        or 0 < SAME * busy_alone <= busy
        or (training.wait_share >= WAITING and busy >= WORKING)
    )


def _reading_rules(tally: Tally) -> bool:
    from_disk = (tally.disk_bytes or 0) >= tally.bytes / 2
    return tally.read_share >= (READING_FROM_DISK if from_disk else READING_RULES)


def _waits_explain(profile: Profile, loss: float) -> bool:
    """Whether waiting for data is at least half of the loss."""
    return profile.training.tallies[profile.brake].wait_share >= loss / 2


def _takes_cores(profile: Profile, loss: float) -> bool:
    """Whether decoding takes cores that the network misses, enough of them to be at least half of the loss."""
    training = profile.training
    return any(
        profile.idle_cores_of_rank(training, rank) < ROOM
        and profile.decoding_cores(training, rank) >= loss * place.cores / 2
        for rank, place in enumerate(profile.places)
    )


def _needed_threads(profile: Profile) -> int:
    """Decoding threads that the busiest rank would need: as many times more as training has to become faster."""
    threads = profile.places[profile.brake].threads
    faster = profile.dummies.samples_per_second / profile.training.samples_per_second
    return max(threads + 1, math.ceil(threads * faster * HEADROOM))


def _whose(profile: Profile) -> str:
    """The rank that holds the others up, if one stands out, to be put behind what it has."""
    shares = [profile.busy_share(profile.training, rank) for rank in range(len(profile.places))]
    rank = profile.brake
    if shares[rank] < OUTSTANDING * sum(shares) / len(shares):
        return ""
    return f" of rank {rank} on {profile.places[rank].host}"


def _compute(profile: Profile, loss: float) -> Verdict:
    need = profile.dummies.samples_per_second
    # The slowest reader counts: all ranks wait for it.
    alone = min(tally.speed for tally in profile.reader.tallies) * len(profile.places)
    ratio = alone / need
    engines = "more GPUs" if profile.gpu else "more cores or a GPU"
    text = f"Compute-bound: training on the set runs at {percent(1 - loss)} of its speed on dummy images, "
    if profile.training.samples_per_second > OTHER * alone:
        text += (
            f"though the reader alone was {ratio:.1f} times as fast as training needs: the set was not in the host's "
            "memory (the page cache) then, and was when it was trained on. Reading is no brake while it stays there."
        )
    elif ratio < RESERVE:
        text += (
            f"but the reader alone is {ratio:.2f} times as fast as training needs, which is tight: with a faster "
            "network reading would become the brake."
        )
    else:
        text += (
            f"and the reader alone is {ratio:.1f} times as fast as training needs. Faster reading would change "
            f"nothing; a larger batch_size or {engines} would."
        )
    return Verdict("compute", text, [], loss)


def _storage(profile: Profile, loss: float, files: SetFiles) -> Verdict:
    rank, gib, threads = profile.brake, files.ram_disk_gib, None
    tally = profile.training.tallies[rank]
    disk = profile.training.disk_bytes_per_second or 0.0
    came = f", {disk / 1e6:.1f} MB/s come from the disk" if disk >= 0.05e6 else ""
    text = (
        f"IO-bound: training loses {percent(loss)} to reading, and the files are the brake: the decoding threads"
        f"{_whose(profile)} spend {percent(tally.read_share)} of their time waiting for them{came}. "
    )
    if profile.idle_cores_of_rank(profile.training, rank) >= ROOM:
        threads = _needed_threads(profile)
        text += (
            f"Try decode_threads={threads} (now {profile.places[rank].threads}): waiting takes no core, and more "
            "threads wait for more files at once. Else put"
        )
    else:
        text += "Put"
    text += f" the set into memory, on each host, and train with {ram_disk_setting(files)}:"
    available = profile.memory_available
    if available is not None and available < gib * GIB:
        text = text[:-1] + (
            f". But only {available / GIB:.1f} GiB of memory are available where {gib} GiB are needed: that takes more "
            "memory, or a local SSD instead:"
        )
    return Verdict("storage", text, ram_disk_lines(files), loss, threads)


def _threads(profile: Profile, loss: float) -> Verdict:
    rank = profile.brake
    now, needed = profile.places[rank].threads, _needed_threads(profile)
    threads = min(needed, now + math.floor(profile.idle_cores_of_rank(profile.training, rank) + 1 - ROOM))
    busy, cores = profile.cores_busy(profile.training, rank)
    text = (
        f"IO-bound: training loses {percent(loss)} to reading, and decoding{_whose(profile)} is the brake, while only "
        f"{busy:.1f} of {cores} cores are busy. Set decode_threads={threads} (now {now})"
    )
    text += "." if needed <= threads else f": all the cores there are for it; {needed} would be needed."
    return Verdict("threads", text, [], loss, threads)


def _cores(profile: Profile, loss: float, costly: tuple[str, ...], saturated: bool) -> Verdict:
    ways = ["more cores"]
    if not profile.gpu:
        ways.append("a GPU for the network")
    if profile.ranks_of_host > 1:
        ways.append("fewer ranks on a host")
    if costly:
        ways.append(f"less augmentation ({', '.join(costly)})")
    if saturated:
        text = (
            f"IO-bound: training loses {percent(loss)} to reading: decoding cannot follow, and no core is left for it"
        )
    else:
        text = (
            f"Short of cores: training loses {percent(loss)} to reading, because decoding takes cores from the network"
        )
    busy, cores = profile.cores_busy(profile.training, profile.brake if saturated else None)
    text += (
        f" ({busy:.1f} of {cores} are busy, with decode_threads={profile.threads} a rank). What would help: "
        f"{', '.join(ways)}."
    )
    return Verdict("cores", text, [], loss)


def _unclear(profile: Profile, loss: float) -> Verdict:
    idle = percent(1 - profile.busy_share(profile.training, profile.brake))
    text = (
        f"Unclear: training is {percent(loss)} slower on the set than on dummy images, though the decoding threads are "
        f"idle {idle} of the time and do not take the cores that the network needs. Measure again, longer, with "
        "--profile-seconds 30."
    )
    return Verdict("unclear", text, [], loss)


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.0f} %"
