"""The rank that stalls a job, and the message that names it."""

import pytest

from partial_fc.distributed.diagnosis import no_progress_message, not_started_message, silent_message
from partial_fc.distributed.rank_status import Record


def record(rank, doing, waiting=False, progress_time=900.0, num_update=12, ended=False):
    return Record(rank, "host", "boot", 100 + rank, 1, "attempt", 0.0, num_update, doing, waiting, ended, progress_time)


WAITING = [record(0, "all-gather x", waiting=True, progress_time=800), record(2, "all-gather y", waiting=True)]
SLOW, SLOWER = record(1, "batch", progress_time=990), record(3, "data", progress_time=901)


@pytest.mark.parametrize(
    "records, size, stopped, message",
    [
        ([*WAITING, SLOW, SLOWER], 4, [], "rank 3 (process 103 on host) made no progress for 99 s: it is at update 12"),
        ([*WAITING, SLOW, SLOWER._replace(ended=True)], 4, [], "rank 1 (process 101 on host) made no progress for 10"),
        ([*WAITING, SLOW, SLOWER], 4, [1], "rank 1 (process 101 on host) made no progress for 10 s and is stopped"),
        (WAITING, 4, [], "the status of ranks 1, 3 is not visible here, and other ranks have waited for 60 s: rank 0"),
        ([WAITING[0], WAITING[1]._replace(rank=1)], 2, [], "the ranks have waited in different collectives for 60 s"),
    ],
)
def test_the_rank_without_progress_that_waits_for_nobody_is_named(records, size, stopped, message):
    shown = no_progress_message(records, size, 1000.0, 60, stopped)
    assert shown.startswith(message) and "rank 0 in all-gather x, rank" in shown  # the ranks that wait


@pytest.mark.parametrize(
    "records, message",
    [
        ([WAITING[0]], "rank 1 of 2 did not start within 300 s"),
        (
            [WAITING[0], SLOW],
            "rank 1 (process 101 on host) did not join the other ranks: no progress for 300 s, it is at update",
        ),
        ([WAITING[0], SLOW._replace(waiting=True)], "the 2 ranks did not connect to each other within 300 s"),
    ],
)
def test_a_rank_that_is_late_at_the_start_is_named(records, message):
    assert not_started_message(records, 2, 300).startswith(message)


def test_a_silent_host_is_named_with_its_ranks():
    silent = "nothing received from host b (ranks 2, 3) and from c for 15 s at update 12: "
    assert silent_message(["b", "c"], ["a", "c", "b", "b"], 15.0, 12).startswith(silent)
    assert silent_message(["b"], ["a", "b"], 15.0, -1).startswith("nothing received from host b (rank 1) for 15 s: ")
