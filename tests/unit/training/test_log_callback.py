"""The log line of a training, as users of the original trainers search for it."""

import re
import time
from types import SimpleNamespace

import pytest

import default
from partial_fc.layer.loss_scale import LossScale
from partial_fc.training.building import Training, build_log, build_verification
from partial_fc.training.callbacks import CallBackLogging
from partial_fc.training.loop import BatchEndParam, LoopState


def log_lines(caplog, updates=4, engine=None, **arguments):
    log = CallBackLogging(2, 0, 2, 32, engine=engine, **arguments)
    with caplog.at_level("INFO"):
        for num_update in range(1, updates + 1):
            log(BatchEndParam(1.5 * num_update, 0, num_update))
    return [record.message for record in caplog.records]


def test_every_setting_reaches_the_callbacks():
    numbers = {"batch_size": 8, "gradient_acc": 3, "log_every": 5, "verify_every": 6, "max_update": 70}
    rates = {"lr": 0.1, "optimizer_options": "lr=0.3", "layer_options": "lr=0.7", "lr_reference_batch": 0}
    settings = default.generate_config(changes={"debug": True}, trainer="torch")
    settings = type(settings)({**settings, **numbers, **rates, "debug": False})
    engine = SimpleNamespace(collectives=SimpleNamespace(rank=1, size=2))
    task = SimpleNamespace(evaluations=lambda: {"a": 1})
    training = Training(settings, task, lambda num_update: num_update / 10, None, engine, None)
    trackers, bar, loop = object(), SimpleNamespace(update=lambda count: None), LoopState()
    log = build_log(training, trackers, bar, loop)
    assert (log.frequent, log.rank, log.global_batch, log.max_update) == (5, 1, 2 * 3 * 8, 70)
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
    assert (
        verification.trackers is trackers
        and "optimizer_options=lr=0.075 layer_options=lr=0.175" in verification.suggestion
    )
    settings["debug"] = True
    assert build_verification(training, trackers).evaluations == {}


def test_a_line_every_frequent_updates(caplog):
    lines = log_lines(caplog)
    assert re.fullmatch(r"Speed \d+\.\d\d samples/sec   Loss 2\.2500   Epoch: 0   Global Step: 2", lines[0])
    assert lines[1].endswith("Loss 5.2500   Epoch: 0   Global Step: 4")


def test_loss_scale_and_time_left_follow_where_they_are_known(caplog):
    engine = SimpleNamespace(
        loss_scale=LossScale(1), loop=LoopState(), collectives=SimpleNamespace(max=lambda name, value: value)
    )
    (line,) = log_lines(caplog, 2, engine, max_update=2, rate=lambda num_update: num_update / 10)
    end = (
        "Global Step: 2   Fp16 Grad Scale: 65536   Required: 0 hours   Waiting for data: 0.0 %   Learning rate: 0.2   "
    )
    assert line.endswith(end + "Time left: 0:00:00")
    caplog.clear()
    (line,) = log_lines(caplog, 2, engine, max_update=10**12)
    assert int(re.search(r"Required: (\d+) hours", line)[1]) > 0 and "Learning rate" not in line
    assert re.search(r"Time left: \d+ days, \d+:\d\d:\d\d$", line)


def test_events_have_what_is_known():
    events = {}
    trackers = SimpleNamespace(
        log=lambda values, step: events.update({(name, step): value for name, value in values.items()})
    )
    log = CallBackLogging(1, 0, 3, 32, trackers, max_update=3, rate=lambda num_update: num_update / 10)
    log(BatchEndParam(2.5, 0, 1))
    assert log.seconds * events["samples_per_second", 1] == pytest.approx(3 * 32)
    assert events["loss", 1] == 2.5 and events["learning_rate", 1] == 0.1
    assert events["seconds_left", 1] == pytest.approx(2 * 3 * 32 / events["samples_per_second", 1])
    assert ("waiting_for_data", 1) not in events  # not measured


def test_a_resumed_log_times_its_own_updates_only(caplog, monkeypatch):
    first = CallBackLogging(4, 0, 1, 1000)
    for num_update in (1, 2, 3):
        first(BatchEndParam(2.0, 0, num_update))
    resumed = CallBackLogging(4, 0, 1, 1000)
    resumed.restore(first.state())
    now = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    resumed.restart()
    now += 1.0  # the following update takes a second
    with caplog.at_level("INFO"):
        resumed(BatchEndParam(6.0, 0, 4))
    (line,) = [record.message for record in caplog.records]
    assert "Loss 3.0000" in line and 900 < float(line.split()[1]) < 1001


def test_a_checkpoint_after_a_verification_does_not_count_its_time():
    log = CallBackLogging(100, 0, 1, 32)
    with log.excluded_time():
        time.sleep(0.5)
        assert log.state()["seconds"] < 0.4
    assert 0 <= log.state()["seconds"] < 0.4
