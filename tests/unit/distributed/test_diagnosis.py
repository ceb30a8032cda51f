"""Which rank stalls a job, and the message that says so."""

import pytest

from partial_fc.distributed.diagnosis import (
    missing,
    no_progress_message,
    not_started_message,
    silent_message,
    stalled_rank,
)
from partial_fc.distributed.rank_status import Record

NOW = 1000.0


def record(rank, doing, waiting=False, progress_time=900.0, num_update=12, ended=False):
    return Record(rank, "host", "boot", 100 + rank, 1, "attempt", 0.0, num_update, doing, waiting, ended, progress_time)


def test_the_stalled_rank_waits_for_nobody_and_is_longest_without_progress():
    waits = [record(0, "all-gather features", waiting=True, progress_time=800), record(2, "all-gather x", waiting=True)]
    assert stalled_rank(waits) is None
    slow, slower = record(1, "batch", progress_time=990), record(3, "batch", progress_time=901)
    assert stalled_rank([*waits, slow, slower]) is slower
    assert stalled_rank([*waits, slow, slower._replace(ended=True)]) is slow


def test_a_rank_without_a_record_is_missing():
    records = [record(0, "all-gather features", waiting=True)]
    assert missing(records, 3) == [1, 2]
    assert no_progress_message(records, 3, NOW, 60, []).startswith(
        "the status of ranks 1, 2 is not visible here, and other ranks have waited for 60 s: rank 0 in all-gather"
    )


def test_the_ranks_that_wait_for_a_stalled_one_are_listed_and_no_others():
    records = [record(0, "x", waiting=True), record(1, "batch"), record(2, "data", progress_time=990)]
    message = "rank 1 (process 101 on host) made no progress for 100 s: it is at update 12, in batch; waiting for it: "
    shown = no_progress_message(records, 3, NOW, 60, [])
    assert shown.startswith(message + "rank 0 in x") and "rank 2" not in shown
    stopped = no_progress_message(records, 3, NOW, 60, [2])
    assert stopped.startswith("rank 2 (process 102 on host) made no progress for 10 s and is stopped")


@pytest.mark.parametrize(
    "records, message",
    [
        ([record(0, "hvd.init", waiting=True)], "rank 1 of 2 did not start within 300 s"),
        (
            [record(0, "hvd.init", waiting=True), record(1, "startup", num_update=-1)],
            "rank 1 (process 101 on host) did not join the other ranks within 300 s: it is in startup",
        ),
        (
            [record(rank, "hvd.init", waiting=True) for rank in range(2)],
            "the 2 ranks did not connect to each other within 300 s: check that their hosts can reach each other",
        ),
    ],
)
def test_a_rank_that_is_late_at_the_start_is_named(records, message):
    assert not_started_message(records, 2, 300) == message


def test_a_host_that_is_silent_is_named_with_its_ranks():
    assert silent_message(["b", "c"], ["a", "c", "b", "b"], 15.0, 12).startswith(
        "nothing received from host b (ranks 2, 3) and from c for 15 s at update 12: the host or the network"
    )
    assert silent_message(["b"], ["a", "b"], 15.0, -1).startswith(
        "nothing received from host b (rank 1) for 15 s: the host or the network"
    )
