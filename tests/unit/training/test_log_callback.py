"""The log line of a training, which has the words of the original trainers."""

import json
import os
import re
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

import default
from partial_fc.checkpoint import Entry, Manifest, read_manifest, write_manifest
from partial_fc.checkpoint.layout import files_of
from partial_fc.checkpoint.manifest import LARGEST
from partial_fc.layer.loss_scale import LossScale
from partial_fc.training.building import Training, build_log, build_verification
from partial_fc.training.callbacks import MAX_SAVED_LINES, CallBackLogging
from partial_fc.training.heads import Head
from partial_fc.training.loop import BatchEndParam, LoopState
from partial_fc.training.results import LossPoint

ENTRIES = {name: Entry(0, "") for name in files_of(1, ["weight", "weight_mom"])}


def log_lines(caplog, updates=4, engine=None, **arguments):
    log = CallBackLogging(2, 0, 2, 32, engine=engine, **arguments)
    with caplog.at_level("INFO"):
        for num_update in range(1, updates + 1):
            log(BatchEndParam(1.5 * num_update, 0, num_update))
    return [record.message for record in caplog.records]


def test_every_setting_reaches_the_callbacks():
    numbers = {"batch_size": 8, "gradient_acc": 3, "log_every": 5, "verify_every": 6, "max_update": 700}
    rates = {"lr": 0.1, "optimizer_options": "lr=0.3", "layer_options": "lr=0.7", "lr_reference_batch": 0}
    settings = default.generate_config(changes={"debug": True}, trainer="torch")
    settings = type(settings)({**settings, **numbers, **rates, "debug": False})
    engine = SimpleNamespace(collectives=SimpleNamespace(rank=1, size=2), head_losses={})
    task = SimpleNamespace(evaluations=lambda: {"a": 1})
    training = Training(settings, task, lambda num_update: num_update / 10, None, engine, None, [Head("", settings)])
    trackers, bar, loop = object(), SimpleNamespace(update=lambda count: None), LoopState()
    log = build_log(training, trackers, bar, loop)
    assert (log.frequent, log.rank, log.global_batch, log.max_update) == (5, 1, 2 * 3 * 8, 700)
    assert log.trackers is trackers and log.bar is bar and log.rate(2) == pytest.approx(0.3 * 0.2)
    loop.waited_for_data = 4.0
    log.restart()
    engine.collectives.max = lambda name, seconds: seconds
    loop.waited_for_data = 4.5
    log(BatchEndParam(1.0, 0, 5))
    assert log.points[-1].waiting * log.seconds == pytest.approx(0.5)
    loop.waited_for_data = 5.5
    log(BatchEndParam(1.0, 0, 10))
    resumed = build_log(training, trackers, bar, LoopState())
    resumed.restore(log.state())
    for each in (log, resumed):
        assert each.waiting * each.seconds == pytest.approx(1.5, rel=1e-2)
    verification = build_verification(training, trackers)
    assert (verification.batch_size, verification.frequent, verification.evaluations) == (8, 6, {"a": 1})
    assert verification.trackers is trackers and verification.max_update == 700
    assert "optimizer_options=lr=0.075 layer_options=lr=0.175" in verification.suggestion
    settings["debug"] = True
    assert build_verification(training, trackers).evaluations == {}


def test_a_line_every_frequent_updates(caplog):
    lines = log_lines(caplog)
    assert re.fullmatch(r"Speed \d+\.\d\d samples/sec   Loss 2\.2500   Epoch: 0   Global Step: 2", lines[0])
    assert lines[1].endswith("Loss 5.2500   Epoch: 0   Global Step: 4")


def test_loss_scale_and_time_left_are_logged_if_known(caplog):
    ranks = SimpleNamespace(max=lambda name, value: value)
    engine = SimpleNamespace(loss_scale=LossScale(1), loop=LoopState(), collectives=ranks, head_losses={})
    (line,) = log_lines(caplog, 2, engine, max_update=2, rate=lambda num_update: num_update / 10)
    end = (
        "Fp16 Grad Scale: 65536   Required: 0 hours   Waiting for data: 0.0 %   Learning rate: 0.2   Time left: 0:00:00"
    )
    assert line.endswith(f"Global Step: 2   {end}")
    caplog.clear()
    (line,) = log_lines(caplog, 2, engine, max_update=10**12)
    assert int(re.search(r"Required: (\d+) hours", line)[1]) > 0 and "Learning rate" not in line
    assert re.search(r"Time left: \d+ days, \d+:\d\d:\d\d$", line)


def test_events_have_only_known_figures():
    events = {}
    trackers = SimpleNamespace(log=lambda values, step: events.update({(name, step): values[name] for name in values}))
    log = CallBackLogging(1, 0, 3, 32, trackers, max_update=3, rate=lambda num_update: num_update / 10)
    log(BatchEndParam(2.5, 0, 1))
    assert log.seconds * events["samples_per_second", 1] == pytest.approx(3 * 32)
    assert events["loss", 1] == 2.5 and events["learning_rate", 1] == 0.1
    assert events["seconds_left", 1] == pytest.approx(2 * 3 * 32 / events["samples_per_second", 1])
    assert ("waiting_for_data", 1) not in events  # not measured


@pytest.mark.parametrize("end", [3, 4])  # last update of the training: the checkpoint's, or one more
def test_a_line_after_a_resume_counts_all_its_updates(end, caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def interrupted(log, loop, num_updates):
        """Each update takes a second, a quarter of which waits for data."""
        nonlocal now
        log.restart()
        for num_update in num_updates:
            now += 1.0
            loop.waited_for_data += 0.25
            log(BatchEndParam(num_update, 0, num_update))

    ranks = SimpleNamespace(max=lambda name, value: value)
    engine = SimpleNamespace(loss_scale=None, collectives=ranks, head_losses={})
    loops = LoopState(), LoopState()
    first, resumed = (CallBackLogging(2, 0, 1, 1000, engine=engine, loop=loop) for loop in loops)
    interrupted(first, loops[0], [1, 2, 3])
    resumed.restore(json.loads(json.dumps(first.state())))
    now += 50.0
    interrupted(resumed, loops[1], range(4, end + 1))
    with caplog.at_level("INFO"):
        resumed.write(0, end)
    last = resumed.points[-1]
    assert (last.num_update, last.loss) == (end, (3 + end) / 2)
    assert (last.samples_per_second, last.waiting) == pytest.approx((1000, 0.25))
    assert resumed.seconds == pytest.approx(end) and resumed.waiting == 0.25


@pytest.mark.parametrize(
    "lines, kept",
    [
        (0, 0),
        (1, 1),
        (MAX_SAVED_LINES, MAX_SAVED_LINES),
        (MAX_SAVED_LINES + 1, MAX_SAVED_LINES // 2 + 1),
        (100_000, 25_000),
    ],
)
def test_a_checkpoint_of_a_long_training_can_be_read(lines, kept, tmp_path):
    log = CallBackLogging(1, 0, 1, 1)
    log.points = [LossPoint(10**7 + line, line / 7, line / 3, 1 / (line + 3), line / 11) for line in range(lines)]
    write_manifest(str(tmp_path), Manifest(1, 1, 1, 1, [(0, 1)], ENTRIES, {"log": log.state()}, [{}], {}))
    assert os.path.getsize(tmp_path / "manifest.json") < LARGEST / 3
    resumed = CallBackLogging(1, 0, 1, 1)
    resumed.restore(read_manifest(str(tmp_path)).state["log"])
    assert len(resumed.points) == kept and resumed.points[-1:] == log.points[-1:]
    assert len({after.num_update - before.num_update for before, after in pairwise(resumed.points)}) <= 1
    losses = {f"{number:040}": number / 7 for number in range(64)}
    log.points = [point._replace(head_losses=losses) for point in log.points]
    assert len(json.dumps(log.state())) < LARGEST / 3


def test_the_losses_of_heads_are_means_of_the_same_updates_also_after_a_resume(caplog):
    shown = {}
    trackers = SimpleNamespace(log=lambda values, step: shown.update(values))
    ranks = SimpleNamespace(max=lambda name, value: value)
    engine = SimpleNamespace(loss_scale=None, collectives=ranks, head_losses={"a": 1.0, "b": 8.0})
    first, resumed = (CallBackLogging(2, 0, 1, 1, trackers, engine=engine, loop=LoopState()) for _ in range(2))
    first(BatchEndParam(5.0, 0, 1))
    resumed.restore(json.loads(json.dumps(first.state())))
    engine.head_losses = {"a": 3.0, "b": 4.0}
    with caplog.at_level("INFO"):
        resumed(BatchEndParam(5.0, 0, 2))
    assert resumed.points[-1].head_losses == {"a": 2.0, "b": 6.0} == {name: shown[f"loss.{name}"] for name in "ab"}
    assert "Loss 5.0000   Loss of a 2.0000   Loss of b 6.0000   Epoch" in caplog.text
    renamed = CallBackLogging(2, 0, 1, 1, engine=engine, loop=LoopState())
    renamed.restore(json.loads(json.dumps(first.state())))
    engine.head_losses = {"new": 3.0, "b": 4.0}
    renamed(BatchEndParam(5.0, 0, 2))
    assert renamed.points[-1].head_losses == {"new": 3.0, "b": 6.0}
    again = CallBackLogging(2, 0, 1, 1)
    again.restore(json.loads(json.dumps(resumed.state())))
    assert again.points == resumed.points


def test_a_checkpoint_after_a_verification_does_not_count_its_time():
    log = CallBackLogging(100, 0, 1, 32)
    with log.excluded_time():
        time.sleep(0.5)
        assert log.state()["since_last_line"]["seconds"] < 0.4
    assert 0 <= log.state()["since_last_line"]["seconds"] < 0.4
