"""Trackers with their real libraries, offline."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from partial_fc.training.trackers import TrackedRun, Trackers, build_trackers, container
from partial_fc.training.trackers.jsonl import JsonLines
from partial_fc_torch.build import TorchFramework

LOGGED = [(1, 1.0), (2, 0.5), (2, 0.5), (3, 1 / 3), (4, 0.25)]  # by both starts
SETTINGS = {"batch_size": 64, "margins": [1.0, 0.5, 0.0]}
# Updates that log, and how each start begins: the second one resumes after update 1, with another batch size.
STARTS = [([1, 2, 4], ()), ([2, 3], (2, {"setting batch_size": (32, 64)}))]
RESUMED_AGAIN = [*STARTS, ([3, 4, 5], (3, {})), ([6], (6, {}))]  # the last one after the end
LINE = '{"num_update": 1, "loss": 1.0}\n'
CHANGE = "setting batch_size from update 2"
FIGURES, RESULTS = ["loss", "verification/lfw/accuracy"], ["backbone.onnx", "report.html"]


def train(names, folder, options=(), results=(), starts=STARTS):
    """Trains and resumes, with a loss after each of the updates, the first before the run begins, as baselines are."""
    for updates, resumed in starts:
        with closing(build_trackers(names, dict(options), open_writer)) as trackers:
            trackers.log({"loss": 1 / updates[0]}, updates[0])
            trackers.begin(str(folder), SETTINGS, *resumed)
            for update in updates[1:]:
                trackers.log({"loss": 1 / update, "verification/lfw/accuracy": 0.5}, update)
            for name in results:
                (folder / name).write_text("<p>done</p>")


def open_writer(folder, first_update):
    # As in a training that resumes: TensorBoard reads the files in the order of their names, which begin with seconds.
    time.sleep(1 - time.time() % 1)
    return TorchFramework.open_writer(None, folder, first_update)


def shown_by_tensorboard(folder):
    """{curve: [(update, value)]}"""
    shown = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {name: [(at.step, at.value) for at in shown.Scalars(name)] for name in shown.Tags()["scalars"]}


def test_tensorboard_shows_each_update_of_a_resumed_training_once(tmp_path):
    train(["tensorboard"], tmp_path, starts=RESUMED_AGAIN)
    losses = [(update, pytest.approx(1 / update)) for update in range(1, 7)]
    assert shown_by_tensorboard(tmp_path)["loss"] == losses


def test_json_lines_have_each_update_of_a_resumed_training_once(tmp_path):
    train(["jsonl"], tmp_path, starts=RESUMED_AGAIN)
    assert len((tmp_path / "run_id").read_text()) == 8
    file = tmp_path / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["num_update"], line["loss"]) for line in lines] == [(update, 1 / update) for update in range(1, 7)]
    assert lines[3] == {"num_update": 4, "loss": 1 / 4, "verification/lfw/accuracy": 0.5}
    file.write_text(file.read_text() + '{"num_upd')  # as a killed training leaves it
    JsonLines().begin(TrackedRun(str(tmp_path), "", {}, 7))
    assert [json.loads(line) for line in file.read_text().splitlines()] == lines


def train_elsewhere(folder, call, **variables):
    """Trains in a process of its own, as all trainings do."""
    code = f"import sys; from pathlib import Path; from test_trackers import *; folder = Path(sys.argv[1]); {call}"
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=True, timeout=120)


@pytest.mark.slow
def test_weights_and_biases(tmp_path):
    """Offline it writes a folder for each process; both have the identifier of the training."""
    options = {"project": "faces", "entity": "team", "run_name": "first", "artifacts": True}
    for number in range(len(STARTS)):  # in one process, its service sometimes writes nothing of the second run
        call = f"train(['wandb'], folder, {options}, RESULTS, [STARTS[{number}]])"
        train_elsewhere(tmp_path, call, WANDB_MODE="offline")
    run_id = (tmp_path / "run_id").read_text()
    files = list(tmp_path.glob(f"wandb/offline-run-*/run-{run_id}.wandb"))
    assert files and len(list(tmp_path.glob("wandb/offline-run-*"))) == len(files)
    content = b"".join(file.read_bytes() for file in files)
    for text in ("faces", "team", "first", "margins", *FIGURES, *RESULTS, CHANGE):
        assert text.encode() in content, text


def test_mlflow(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without the packages for a database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    train(["mlflow"], tmp_path, {"project": "faces", "artifacts": True}, RESULTS)
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("faces").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == tmp_path.name
    assert run.data.params == {"batch_size": "64", "margins": "[1.0, 0.5, 0.0]"}
    assert run.data.tags[CHANGE] == "32, now 64"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == LOGGED
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == RESULTS
    (tmp_path / "run_id").unlink()  # another training
    train(["mlflow"], tmp_path, {"project": "faces", "run_name": "second"}, RESULTS)
    runs = client.search_runs([run.info.experiment_id])
    (second,) = [each.info for each in runs if each.info.run_id != run.info.run_id]
    assert second.run_name == "second" and not client.list_artifacts(second.run_id)


def test_trackio(tmp_path):
    call = "train(['trackio'], folder, {'project': 'faces', 'run_name': 'first'})"
    train_elsewhere(tmp_path, call, TRACKIO_DIR=str(tmp_path / "trackio"))
    with closing(sqlite3.connect(tmp_path / "trackio" / "faces.db")) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        configs = database.execute("select config from configs").fetchall()
    assert {name for name, _, _ in rows} == {f"first-{(tmp_path / 'run_id').read_text()}"}
    assert sorted((step, json.loads(metrics)["loss"]) for _, step, metrics in rows) == LOGGED
    assert CHANGE in str(configs) and "margins" in str(configs)


@pytest.mark.parametrize("tracker", ["mlflow", "tensorboard"])  # which refuse or change names
def test_every_curve_goes_on_whatever_it_is_called(tracker, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    sets = {
        "lfw@112": "lfw_112",
        "lfw_112": "lfw_112_2",
        "../a//b": "_/a/__2/b",
        "人 脸": "人_脸",
        "\udcff": "__3",
        "x" * 300: "x" * 100,
        "x" * 100: "x" * 100 + "_2",
        "y" * 101: "y" * 100,
    }
    with closing(build_trackers([tracker], {}, open_writer)) as trackers:
        trackers.begin(str(tmp_path), {})
        for update in (1, 2, 3):
            trackers.log({f"verification/{name}/accuracy": update / 4 for name in sets}, update)
    assert "warning" not in capfd.readouterr().err and "illegal" not in caplog.text
    expected = {f"verification/{name}/accuracy": [(n, n / 4) for n in (1, 2, 3)] for name in sets.values()}
    if tracker == "tensorboard":
        assert shown_by_tensorboard(tmp_path) == expected
    else:
        (metrics,) = (tmp_path / "mlruns").rglob("metrics")
        for name, points in expected.items():
            lines = [line.split() for line in (metrics / name).read_text().splitlines()]
            assert [(int(update), float(value)) for _, value, update, *_ in lines] == points


def test_a_refusal_is_a_warning_and_the_next_values_come(tmp_path, capfd):
    class Choosy(JsonLines):
        def log(self, values, num_update):
            if num_update % 2:
                raise RuntimeError("odd\nupdates are refused")
            super().log(values, num_update)

    with closing(Trackers({"mine": Choosy()})) as trackers:
        trackers.begin(str(tmp_path), SETTINGS)
        for update in range(6):
            trackers.log({"loss": 1.0}, update)
    first, last = capfd.readouterr().err.splitlines()
    assert f"values of {tmp_path} to mine" in first and "odd updates are refused" in first and "3 times" in last
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("missing", ["begin", "log", "close"])
def test_a_tracker_that_fails_is_named_and_the_others_go_on(missing, tmp_path, capfd):
    methods = {name: lambda self, *values: None for name in ("begin", "log", "close") if name != missing}
    with closing(Trackers({"mine": type("Mine", (), methods)(), "jsonl": JsonLines()})) as trackers:
        trackers.begin(str(tmp_path), SETTINGS)
        trackers.log({"loss": 1.0}, 1)
    (error,) = capfd.readouterr().err.splitlines()
    assert " of mine" in error or " to mine" in error
    assert f"has no attribute '{missing}'" in error
    assert (tmp_path / "metrics.jsonl").read_text() == LINE


def test_what_cannot_be_tracked_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "partial_fc.training.trackers.weights_and_biases", raising=False)
    for name, options, message in [
        ("wandb2", {}, "did you mean 'wandb'"),
        ("jsonl", {"entity": "team"}, "entity"),
        ("wandb", {}, "pip install wandb"),
    ]:
        with pytest.raises(ValueError, match=message):
            build_trackers([name], options, None)


def test_a_tracker_that_hangs_is_named_and_the_others_go_on(tmp_path, capfd, monkeypatch):
    ended = threading.Event()

    class Hanging(JsonLines):
        def begin(self, run):
            ended.wait(60)

    monkeypatch.setattr(container, "CLOSING", 0.5)
    hanging = {f"mine {number}": Hanging() for number in range(8)}
    with closing(Trackers({**hanging, "jsonl": JsonLines()})) as trackers:
        trackers.begin(str(tmp_path), SETTINGS)
        trackers.log({"loss": 1.0}, 1)
        start = time.monotonic()
    assert time.monotonic() - start < 3, "of 8 x 0.5 s"
    ended.set()
    assert (tmp_path / "metrics.jsonl").read_text() == LINE
    errors = capfd.readouterr().err
    assert errors.count("\n") == 8 and "to mine 7" in errors and "0.5 s" in errors


class LibraryThread(threading.Thread):
    """A thread of a library that writes in the background."""

    __module__ = "somewhere.writer"

    def run(self):
        raise OSError("disk full")


class InMemory:
    def __init__(self, *threads_of):
        self.threads_of, self.logged = threads_of, []

    def begin(self, run):
        pass

    def log(self, values, num_update):
        self.logged.append(num_update)

    def close(self):
        pass


def test_an_error_in_a_librarys_thread_ends_its_tracker(tmp_path, monkeypatch, capfd):
    """Errors of other threads are reported as before."""
    first, second, reported = InMemory("somewhere"), InMemory(), []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    hook = threading.excepthook
    with closing(Trackers({"first": first, "second": second})) as trackers:
        trackers.begin(str(tmp_path), SETTINGS)
        for thread in (threading.Thread(target=int, args=("no number",)), LibraryThread()):
            thread.start()
            thread.join()
            trackers.log({"loss": 1.0}, 1)
            while not (first.logged and second.logged):  # otherwise the failure may come first
                time.sleep(0.01)
    assert threading.excepthook == hook and [type(failure.exc_value) for failure in reported] == [ValueError]
    assert (first.logged, second.logged) == ([1], [1, 1]) and "to first (disk full)" in capfd.readouterr().err
