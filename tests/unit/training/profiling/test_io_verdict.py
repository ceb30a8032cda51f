"""The verdict of an I/O profile."""

import pytest
from io_figures import SET, profile, tally

from partial_fc.training.profiling.ram_disk import GIB
from partial_fc.training.profiling.verdict import judge


def test_compute_bound():
    verdict = judge(profile(tally(3000), tally(1000), [tally(980, busy=0.3)]), SET)
    assert (verdict.kind, verdict.lines) == ("compute", [])
    assert verdict.text.startswith("Compute-bound: training on the data set runs at 98 % of its speed on dummy images")
    assert "3 times the speed that training needs" in verdict.text
    assert "larger batch_size or more GPUs" in verdict.text
    assert verdict.loss == pytest.approx(0.02)
    assert judge(profile(tally(3000), tally(1000), [tally(1030, busy=0.3)]), SET).loss == 0  # faster than on dummies


def test_compute_bound_only_while_the_set_stays_in_memory():
    cold = [tally(300, busy=1, reading=0.9), tally(3000, busy=1)]  # the slower one decides
    measured = profile(tally(3000), tally(1000), [tally(980, busy=0.3)] * 2)
    text = judge(measured._replace(reader=measured.reader._replace(tallies=tuple(cold))), SET).text
    assert "The reader alone runs at 0.3 times the speed that training needs: the data set was not in the page" in text
    assert "would not help" not in text


def test_compute_bound_without_reserve():
    text = judge(profile(tally(1020, busy=1), tally(1000), [tally(960, busy=0.95)]), SET).text
    assert "1.02 times the speed that training needs: with a faster network reading would become" in text
    assert "would not help" not in text


def test_storage_is_the_bottleneck():
    verdict = judge(profile(tally(610), tally(1000), [tally(600, waits=0.4, busy=0.99, reading=0.8, disk=10**7)]), SET)
    assert verdict.kind == "storage"
    assert "I/O-bound: training loses 40 % to reading" in verdict.text
    assert "81 % of their time waiting for files" in verdict.text
    assert "train with data_root=/mnt/faces_in_memory" in verdict.text
    assert verdict.lines[0] == (
        "sudo mkdir -p /mnt/faces_in_memory && sudo mount -t tmpfs -o size=32G tmpfs /mnt/faces_in_memory"
    )
    assert "GiB of memory" not in verdict.text


def test_reading_dominates_sooner_if_the_bytes_come_from_the_disk():
    def kind(disk):
        training = tally(600, waits=0.4, busy=0.99, reading=0.3, disk=disk)
        return judge(profile(tally(610), tally(1000), [training]), SET).kind

    assert (kind(disk=0), kind(disk=10**8)) == ("threads", "storage")


def test_a_ram_disk_that_does_not_fit_into_memory():
    training = [tally(600, waits=0.4, busy=0.99, reading=0.8, disk=10**8)]
    verdict = judge(profile(tally(610), tally(1000), training, memory=31 * GIB), SET)
    assert "This needs 32 GiB of memory, but only 31.0 GiB are free" in verdict.text
    assert len(verdict.lines) == 2
    assert "are free" not in judge(profile(tally(610), tally(1000), training, memory=32 * GIB), SET).text


def test_more_decoding_threads():
    training = [tally(250, waits=0.7, busy=0.95, cores=1.5)] * 2
    verdict = judge(profile(tally(260), tally(1000), training), SET)
    # 1000 images/s at 3.8 ms of a thread each, plus 10 %: 4.2 threads; the rank has 4 of 8 cores.
    assert (verdict.kind, verdict.decode_threads) == ("threads", 4)
    expected = "I/O-bound: training loses 75 % to reading, and decoding is the bottleneck, while only 3.0 of 8 cores"
    assert verdict.text.startswith(expected)
    assert "decode_threads=4 (now 1): this uses all idle cores; 5 would be needed" in verdict.text
    few = [tally(250, waits=0.7, busy=0.95, cores=5.8)]
    assert judge(profile(tally(260), tally(1000), few), SET).decode_threads == 3  # 8 - 5.8 are 2 more
    verdict = judge(profile(tally(260), tally(1000), training, cores=64), SET)
    assert verdict.decode_threads == 5
    assert verdict.text.endswith("Set decode_threads=5 (now 1).")


def test_more_decoding_threads_than_the_default_share_of_cores():
    training = [tally(550, waits=0.3, busy=7.8, reading=3.5, cores=5.6)] * 8
    verdict = judge(profile(tally(560, busy=7.9, cores=4.6), tally(800), training, cores=64, threads=8), SET)
    assert (verdict.kind, verdict.decode_threads) == ("threads", 10)  # 64 - 8 * 5.6 are 2.4 more per rank
    assert "no core is idle" not in verdict.text and "13 would be needed" in verdict.text


@pytest.mark.parametrize(
    "training",
    [
        tally(790, waits=0.2, busy=0.5),  # as fast as the reader alone
        tally(700, waits=0.2, busy=0.64),  # slower than the reader alone, but its threads are as busy
        tally(700, waits=0.5, busy=0.55),  # neither, but it waits half of the time
    ],
)
def test_threads_on_shared_machines_may_be_at_their_limit_without_being_always_busy(training):
    verdict = judge(profile(tally(800, busy=0.66), tally(1600), [training]), SET)
    assert (verdict.kind, verdict.decode_threads) == ("threads", 3)


def test_the_rank_that_delays_the_others_is_judged_by_its_figures():
    training = [tally(300, waits=0.01, busy=1.2, reading=0.08)] * 7 + [tally(300, waits=0.6, busy=7.9, reading=7.2)]
    verdict = judge(profile(tally(2000, busy=7), tally(800), training, cores=64, threads=8), SET)
    assert verdict.kind == "storage"
    assert "the decoding threads of rank 7 on host spend 91 % of their time waiting" in verdict.text
    decoding = [tally(300, busy=1, reading=0.9)] * 7 + [tally(300, waits=0.6, busy=7.9, reading=0.1)]
    verdict = judge(profile(tally(2000, busy=7), tally(800), decoding, cores=64, threads=8), SET)
    assert verdict.kind == "threads" and "decoding of rank 7 on host is the bottleneck" in verdict.text


def test_waiting_for_files_uses_no_cores():
    waiting = tally(520, waits=0.2, cores=1.95, busy=0.9, reading=0.8)  # 0.45 of each thread's time
    verdict = judge(profile(tally(2000, busy=1.9), tally(700), [waiting], cores=2, threads=2), SET)
    assert verdict.kind == "storage"
    assert "decode_threads" not in verdict.text  # the network uses the cores
    hidden = waiting._replace(waited=0)
    assert judge(profile(tally(2000, busy=1.9), tally(700), [hidden], cores=2, threads=2), SET).kind == "unclear"


def test_more_threads_that_wait_for_files_on_idle_cores():
    verdict = judge(profile(tally(250), tally(800), [tally(250, waits=0.6, busy=0.99, reading=0.9)]), SET)
    assert (verdict.kind, verdict.decode_threads) == ("storage", 4)
    assert "91 % of their time waiting for files. Try decode_threads=4 (now 1)" in verdict.text
    assert "from the disk" not in verdict.text


def test_no_core_is_idle():
    training = [tally(750, waits=0.2, busy=0.95, cores=1.0)] * 2
    verdict = judge(profile(tally(800), tally(1000), training, cores=2, gpu=False), SET, ("color_jittering",))
    assert (verdict.kind, verdict.decode_threads) == ("cores", None)
    assert verdict.text.startswith("I/O-bound: training loses 25 % to reading: decoding and the network share")
    assert "2.0 of 2 busy, decode_threads=1 per rank" in verdict.text
    options = "more cores, a GPU for the network, fewer ranks per host, less augmentation (color_jittering)."
    assert verdict.text.endswith(options)


def test_a_fast_reader_can_take_cores_from_the_network():
    verdict = judge(profile(tally(4000, busy=1), tally(1000), [tally(800, busy=0.2, cores=1.9)], cores=2), SET)
    assert verdict.kind == "cores"
    assert verdict.text.startswith("I/O-bound: training loses 20 % to reading")
    assert verdict.text.endswith("Possible improvements: more cores.")
    idle = judge(profile(tally(4000, busy=1), tally(1000), [tally(800, busy=0.01, cores=1.9)], cores=2), SET)
    assert idle.kind == "unclear"  # mostly idle threads take none


def test_an_unexplained_loss():
    verdict = judge(profile(tally(4000, busy=1), tally(1000), [tally(900, busy=0.2, cores=1.5)]), SET)
    assert verdict.kind == "unclear"
    assert "10 % slower" in verdict.text and "--profile-seconds 30" in verdict.text
    cold = tally(300, busy=0.99, reading=0.9)  # a cold reader alone is no evidence
    assert judge(profile(cold, tally(1000), [tally(800, busy=0.2)]), SET).kind == "unclear"
