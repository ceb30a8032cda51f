"""Made-up measurements of an I/O profile."""

from partial_fc.training.profiling.facts import Phase, Profile, RankHost, Tally
from partial_fc.training.profiling.ram_disk import GIB, SetFiles

SET = SetFiles("/sets/emore/train.rec", ("property", "train.idx", "train.rec"), 30 * GIB, "emore")


def tally(speed, waits=0.0, cores=1.0, busy=0.0, reading=0.0, disk=0, idle=None):
    """Returns 10 s of a rank at ``speed`` images/s of 10 kB; ``busy``, ``reading``: shares of one thread's time."""
    return Tally(10.0, int(10 * speed), 10 * waits, 10 * cores, int(1e5 * speed), 10 * reading, 10 * busy, disk, idle)


def profile(reader, dummies, training, cores=8, threads=1, memory=64 * GIB, gpu=True):
    """Returns a profile of ranks on one host, one per tally of ``training``; in other phases all ranks are equal."""
    ranks = len(training)
    phases = [
        Phase("reader alone", 50, (reader,) * ranks),
        Phase("training, dummy images", 50, (dummies,) * ranks),
        Phase("training, the set", 50, tuple(training)),
    ]
    return Profile(*phases, (RankHost("host", cores, threads, memory),) * ranks, gpu)
