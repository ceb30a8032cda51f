"""A line while a phase logs nothing, and none while training steps are running or other lines appear."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from partial_fc.training.quiet_phases import lines_in_quiet_phases


@pytest.mark.parametrize(
    "doing, others, expected",
    [
        ("embed.lfw", False, "verification lfw: "),
        ("all-gather status.save_model", False, "saving and exporting the model: "),
        ("the following step", False, ""),
        ("embed.lfw", True, ""),
    ],
)
def test_a_quiet_phase_logs_a_line(doing, others, expected, caplog):
    caplog.set_level(logging.INFO)
    status = SimpleNamespace(doing=doing)
    collectives = SimpleNamespace(rank=0, watchdog=SimpleNamespace(rank_status=status))
    before = threading.active_count()
    with lines_in_quiet_phases(collectives, 0.4):
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            if others:
                logging.info("another line")
            time.sleep(0.02)
    lines = [line for line in caplog.messages if line != "another line"]
    assert all(line.startswith(expected) and line.endswith(" s so far") for line in lines)
    assert bool(lines) == bool(expected) and len(lines) <= 3 and threading.active_count() == before


def test_another_rank_logs_nothing(caplog):
    with lines_in_quiet_phases(SimpleNamespace(rank=1, watchdog=None), 0.01):
        time.sleep(0.1)
    assert not caplog.messages
