"""The one report of why a job ends."""

import threading
import time

import pytest

from partial_fc.distributed import reporter as reporter_module
from partial_fc.distributed.rank_status import RankStatusStore
from partial_fc.distributed.reporter import ErrorReporter, run_within


@pytest.fixture
def reporters(tmp_path):
    """The reporters of two ranks."""
    return [ErrorReporter(RankStatusStore(str(tmp_path), "key", rank).open()) for rank in (0, 1)]


def test_one_rank_reports_once(reporters, capfd):
    first, second = reporters
    for reporter, text in ((second, "error: one\x1b[2J"), (first, "error: two"), (second, "error: three")):
        reporter.report(text)
    assert capfd.readouterr().err == "error: one\\x1b[2J\n"


def test_the_exit_code_is_that_of_the_rank_that_reports(reporters):
    assert reporters[0].exit_code(3) == 3
    reporters[0].report("error: one", 75)
    assert reporters[1].exit_code(3) == reporters[0].exit_code(3) == 75


def test_a_closed_reporter_prints_nothing_and_leaves_the_report_to_others(reporters, capfd):
    reporters[0].closed = True
    reporters[0].report("error: one")
    reporters[1].report("error: two")
    assert capfd.readouterr().err == "error: two\n"


def test_the_thread_that_does_not_report_waits_and_prints_nothing(reporters, capfd):
    reporters[0].report("error: main")
    start = time.monotonic()
    other = threading.Thread(target=reporters[0].report, args=("error: watchdog", 1, 0.2))
    other.start()
    other.join()
    assert time.monotonic() - start >= 0.2
    assert capfd.readouterr().err == "error: main\n"


def test_without_an_answer_of_the_disk_the_error_is_printed(reporters, capfd, monkeypatch):
    monkeypatch.setattr(reporter_module, "STORE_TIMEOUT", 0.1)
    monkeypatch.setattr(RankStatusStore, "claim_error_report", lambda self, code: time.sleep(600))
    reporters[0].report("error: one")
    assert capfd.readouterr().err == "error: one\n"


def test_run_within_returns_the_result_or_the_alternative():
    assert run_within(60, lambda: 1, 2) == 1
    assert run_within(0.1, lambda: time.sleep(600), 2) == 2
