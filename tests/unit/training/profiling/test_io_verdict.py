"""The verdict of an I/O profile."""

import pytest
from io_figures import SET, profile, tally

from partial_fc.training.profiling.facts import Phase, RankHost
from partial_fc.training.profiling.ram_disk import GIB
from partial_fc.training.profiling.verdict import judge

FAST, COLD = tally(3000), tally(300, busy=0.99, reading=0.9)
READING = tally(600, waits=0.4, busy=0.99, reading=0.8, disk=10**7)
DECODING = [tally(250, waits=0.7, busy=0.95, cores=1.5)] * 2
MANY = [tally(550, waits=0.3, busy=7.8, reading=3.5, cores=5.6)] * 8
WAITING = tally(520, waits=0.2, cores=1.95, busy=0.9, reading=0.8)  # 0.45 of each thread's time
ON_TWO = {"cores": 2, "threads": 2}
OF_64 = {"cores": 64, "threads": 8}
TWO_HOSTS = tuple(RankHost(host, 8, 1, memory * GIB) for host, memory in (("a", 64), ("b", 31)))
CASES = {  # profile; kind, decode_threads, what the text has, and what it lacks
    "as fast as on dummy batches": (
        profile(FAST, tally(1000), [tally(980, busy=0.3)]),
        ("compute", None, ["98 % of its speed", "3 times the speed that training needs", "or more GPUs"], []),
    ),
    "while the set stays in memory; the slower rank decides": (
        profile(COLD, tally(1000), [tally(980, busy=0.3)] * 2),
        ("compute", None, ["0.3 times the speed that training", "was not in the page cache at"], ["would not help"]),
    ),
    "of two readers the slower one decides": (
        profile(FAST, tally(1000), [tally(980, busy=0.3)] * 2)._replace(
            reader=Phase("reader alone", 50, (FAST, tally(1020, busy=1)))
        ),
        ("compute", None, ["1.02 times the speed", "with a faster network reading would"], ["would not help"]),
    ),
    "storage": (
        profile(tally(610), tally(1000), [READING]),
        (
            "storage",
            2,
            ["loses 40 % to", "81 % of their time", "Try decode_threads=2 (now 1)", "data_root=/mnt"],
            ["GiB"],
        ),
    ),
    "half of the time reading, from memory": (
        profile(tally(610), tally(1000), [tally(600, waits=0.4, busy=0.99, reading=0.3)]),
        ("threads", 2, [], []),
    ),
    "the same from the disk": (
        profile(tally(610), tally(1000), [tally(600, waits=0.4, busy=0.99, reading=0.3, disk=10**8)]),
        ("storage", 2, [], []),
    ),
    "a set that does not fit into the memory of the smaller host": (
        profile(tally(610), tally(1000), [READING] * 2)._replace(rank_hosts=TWO_HOSTS),
        ("storage", 2, ["This needs 32 GiB of memory, but only 31.0 GiB are free"], []),
    ),
    "a set that just fits": (
        profile(tally(610), tally(1000), [READING], memory=32 * GIB),
        ("storage", 2, [], ["are free"]),
    ),
    # 1000 images/s at 3.8 ms of a thread each, plus 10 %: 4.2 threads; the rank has 4 of 8 cores.
    "more threads, of which all idle cores are too few": (
        profile(tally(260), tally(1000), DECODING),
        ("threads", 4, ["loses 75 % to", "only 3.0 of 8 cores", "(now 1): this uses all idle cores; 5 would be"], []),
    ),
    "read in worker processes": (
        profile(tally(260), tally(1000), DECODING)._replace(readers_setting="decode_processes"),
        ("threads", 4, ["Set decode_processes=4 (now 1)"], ["decode_threads"]),
    ),
    "by Python code, of which one thread runs at a time": (
        profile(tally(260), tally(1000), DECODING, cores=8)._replace(python=True),
        ("python", 4, ["in one thread", "Set decode_processes=4: this uses all cores; 5 would"], ["decode_threads"]),
    ),
    "by Python code, on two hosts": (
        profile(tally(260), tally(1000), DECODING)._replace(python=True, rank_hosts=TWO_HOSTS),
        ("python", 5, ["Set decode_processes=5."], []),
    ),
    "by Python code, that seems to wait for files": (
        profile(tally(250), tally(800), [tally(250, waits=0.6, busy=0.99, reading=0.9)])._replace(python=True),
        ("python", 4, ["Set decode_processes=4."], ["more cores", "storage"]),
    ),
    "by Python code, and no core is idle": (
        profile(tally(500), tally(1000), [tally(480, waits=0.2, busy=0.5, cores=1.8)], cores=2)._replace(python=True),
        ("python", 2, ["decode_processes=2: this uses all cores; 3", "1.8 of 2 cores are busy: more cores"], []),
    ),
    "by Python code that waits for the network": (
        profile(tally(250, cores=0.1), tally(800), [READING._replace(disk_bytes=0)])._replace(python=True),
        ("storage", 2, ["Try decode_processes=2 or more", "Otherwise copy"], ["decode_threads"]),
    ),
    "the same while the training leaves no core idle": (
        profile(tally(250, cores=0.1), tally(800), [READING._replace(disk_bytes=0, cpu_seconds=8 * 50)])._replace(
            python=True
        ),
        ("storage", 2, ["Try decode_processes=2 or more"], ["decode_threads"]),
    ),
    "by Python code that releases the lock": (
        profile(tally(520, cores=2.0), tally(2000), DECODING, cores=64, threads=2)._replace(python=True),
        ("threads", 18, [], ["decode_processes"]),
    ),
    "with cores enough": (
        profile(tally(260), tally(1000), DECODING, cores=64),
        ("threads", 5, ["Set decode_threads=5 (now 1)."], []),
    ),
    "64 - 8 * 5.6 cores are 2.4 more per rank": (
        profile(tally(560, busy=7.9, cores=4.6), tally(800), MANY, **OF_64),
        ("threads", 10, ["13 would be needed"], ["no core is idle"]),
    ),
    # Threads on shared machines may be at their limit without being always busy.
    "as fast as the reader alone": (
        profile(tally(800, busy=0.66), tally(1600), [tally(790, waits=0.2, busy=0.5)]),
        ("threads", 3, [], []),
    ),
    "the rank that delays the others reads": (
        profile(
            tally(2000, busy=7),
            tally(800),
            [tally(300, waits=0.01, busy=1.2, reading=0.08)] * 7 + [tally(300, waits=0.6, busy=7.9, reading=7.2)],
            **OF_64,
        ),
        ("storage", 24, ["threads of rank 7 on host spend 91 %"], []),
    ),
    "waiting for files uses no cores, but the network does": (
        profile(tally(2000, busy=1.9), tally(700), [WAITING], **ON_TWO),
        ("storage", None, [], ["decode_threads"]),
    ),
    "waiting that is hidden": (
        profile(tally(2000, busy=1.9), tally(700), [WAITING._replace(waited=0)], **ON_TWO),
        ("unclear", None, [], []),
    ),
    "no core is idle": (
        profile(tally(800), tally(1000), [tally(750, waits=0.2, busy=0.95, cores=1.0)] * 2, cores=2, gpu=False),
        ("cores", None, ["2.0 of 2 busy", "more cores, a GPU for the network, fewer ranks", "(color_jittering)."], []),
    ),
    "a fast reader that takes cores from the network": (
        profile(tally(4000, busy=1), tally(1000), [tally(800, busy=0.2, cores=1.9)], cores=2),
        ("cores", None, ["loses 20 % to reading", "improvements: more cores, less"], []),
    ),
    "mostly idle threads take none": (
        profile(tally(4000, busy=1), tally(1000), [tally(800, busy=0.01, cores=1.9)], cores=2),
        ("unclear", None, [], []),
    ),
    "an unexplained loss": (
        profile(tally(4000, busy=1), tally(1000), [tally(900, busy=0.2, cores=1.5)]),
        ("unclear", None, ["10 % slower", "--profile-seconds 30"], []),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict(case):
    measured, (kind, threads, words, absent) = CASES[case]
    verdict = judge(measured, SET, ("color_jittering",))
    assert (verdict.kind, verdict.decode_threads) == (kind, threads), verdict.text
    assert all(text in verdict.text for text in words) and not any(text in verdict.text for text in absent), verdict
    assert [line.split()[1] for line in verdict.lines] == (["mkdir", "-p"] if kind == "storage" else [])


def test_the_loss_is_not_negative():
    assert judge(profile(FAST, tally(1000), [tally(980, busy=0.3)]), SET).loss == pytest.approx(0.02)
    assert judge(profile(FAST, tally(1000), [tally(1030, busy=0.3)]), SET).loss == 0  # faster than on dummies
