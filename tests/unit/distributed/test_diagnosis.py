"""Which rank is to blame, and how it is said."""

import pytest

from partial_fc.distributed.diagnosis import (
    absent_sentence,
    connection_sentence,
    gone_sentence,
    missing,
    silent_sentence,
    stalled_rank,
    still_sentence,
)
from partial_fc.distributed.rank_status import Record

NOW = 1000.0


def record(rank, doing, waiting=False, moved=900.0, num_update=12, ended=False):
    return Record(rank, "host", 100 + rank, 1, num_update, doing, waiting, ended, moved)


def test_the_culprit_waits_for_nobody_and_moved_longest_ago():
    waits = [record(0, "all-gather features", waiting=True, moved=800), record(2, "all-gather x", waiting=True)]
    assert stalled_rank(waits) is None
    slow, slower = record(1, "batch", moved=990), record(3, "batch", moved=901)
    assert stalled_rank([*waits, slow, slower]) is slower
    assert stalled_rank([*waits, slow, slower._replace(ended=True)]) is slow


def test_a_rank_that_hangs_is_named_with_those_that_wait_for_it():
    records = [record(0, "all-gather features", waiting=True), record(1, "data", moved=940)]
    assert still_sentence(records, 2, NOW, 60, []) == (
        "rank 1 (process 101 on host) has not moved for 60 s: it stands at update 12, in data; "
        "rank 0 waits in all-gather features for it"
    )


def test_a_stopped_rank_is_named_wherever_it_stands():
    records = [record(0, "all-gather features", waiting=True), record(1, "all-gather features", waiting=True)]
    told = still_sentence(records, 2, NOW, 60, [1])
    assert told.startswith(
        "rank 1 (process 101 on host) has not moved for 100 s and is stopped (SIGSTOP or a debugger)"
    )
    assert told.endswith("; rank 0 waits in all-gather features for it")


def test_ranks_in_different_collectives_are_all_named():
    records = [record(0, "all-gather features", waiting=True), record(1, "all-reduce log.waited", waiting=True)]
    told = still_sentence(records, 2, NOW, 60, [])
    assert "wait for each other in different places for 60 s" in told
    assert "rank 0 waits in all-gather features, rank 1 waits in all-reduce log.waited" in told


def test_a_rank_without_a_record_is_missing():
    records = [record(0, "all-gather features", waiting=True)]
    assert missing(records, 3) == [1, 2]
    assert still_sentence(records, 3, NOW, 60, []).startswith(
        "ranks 1, 2 cannot be seen from here, and rank 0 waits in"
    )


def test_many_ranks_are_not_all_listed():
    records = [record(rank, "all-gather features", waiting=True) for rank in range(20)]
    told = still_sentence([*records, record(20, "data", moved=800)], 21, NOW, 60, [])
    assert "rank 7 waits" in told and "rank 8" not in told and "and 12 more wait for it" in told
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 ... of 20" in absent_sentence([], 20, 300)


@pytest.mark.parametrize(
    "records, told",
    [
        ([record(0, "Horovod's start", waiting=True)], "rank 1 of 2 did not come within 300 s of the start"),
        (
            [record(0, "Horovod's start", waiting=True), record(1, "its start", num_update=-1)],
            "rank 1 (process 101 on host) did not get to the others within 300 s: it stands in its start",
        ),
        (
            [record(rank, "Horovod's start", waiting=True) for rank in range(2)],
            "the 2 ranks did not find each other within 300 s: see that their hosts reach each other",
        ),
    ],
)
def test_who_is_late_at_the_start(records, told):
    assert absent_sentence(records, 2, 300) == told


def test_a_rank_that_is_gone():
    assert gone_sentence(record(3, "batch")) == (
        "rank 3 (process 103 on host) is gone without a word, killed perhaps: it stood at update 12, in batch"
    )


def test_a_lost_connection_names_who_was_last_seen_on_another_host():
    mine, near = record(0, "all-gather features", waiting=True), record(1, "data", moved=800)
    far = record(2, "save_model")._replace(host="elsewhere")
    told = "rank 0 lost the connection to the others at update 12, in all-gather features: one of another host is gone"
    assert connection_sentence(0, [mine, near]) == told
    seen = "; rank 2 (process 102 on elsewhere) was last seen at update 12, in save_model"
    assert connection_sentence(0, [mine, near, far]) == told + seen
    assert connection_sentence(0, []) == "rank 0 lost the connection to the others: one of another host is gone"


def test_a_host_that_is_silent_is_named_with_its_ranks():
    assert silent_sentence(["b", "c"], [3, 2], 15.0, 12).startswith(
        "nothing has come from host b (ranks 2, 3) and from c for 15 s at update 12: it is down, or "
    )
    assert silent_sentence(["b"], [], 15.0, -1).startswith("nothing has come from host b for 15 s: it is down")
