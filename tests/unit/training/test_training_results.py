"""What a finished training writes and logs, from plain numbers."""

import json
import logging
from types import SimpleNamespace

import pytest

from made_up_training import SETTINGS, a_set, a_training, log_lines, point
from partial_fc.checkpoint import Manifest
from partial_fc.training.heads import Head
from partial_fc.training.log_lines import log_resume
from partial_fc.training.next_commands import next_commands
from partial_fc.training.report import try_report, write_results
from partial_fc.training.saving import onnx_metadata
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.training.verifying import CallBackVerification
from paths import ROOT

POINTS = [point(10, 0.8), point(20, 0.7)]


def test_summary():
    result = a_training(seconds=12.34567, training_seconds=4.0, losses=log_lines((3.0, 2.5), (10, 20)))
    summary = result._replace(sets={"val": a_set(points=POINTS)}).summary()
    assert (summary["ranks"], summary["updates"], summary["seconds"]) == (2, 32000, 12.346)
    assert (summary["final_loss"], summary["samples_per_second"]) == (2.5, 80.0)  # 20 updates of 16 images in 4 seconds
    assert summary["verification"] == {"val": 0.7} and summary["verification_details"]["val"]["best"] == 0.8
    assert summary["problems"] == {} and summary["suggestion"] is None
    summary = a_training(sets={"val": a_set(problems=["collapsed"])}, losses=[], training_seconds=0.0).summary()
    assert summary["problems"] == {"val": ["collapsed"]} and summary["suggestion"] == "start again with lr=0.1"
    assert summary["final_loss"] is summary["samples_per_second"] is None


def test_a_summary_has_every_figure():
    figures = {"ranks": 3, "updates": 7, "baselines": {"raw_pixels": 0.6}, "versions": {"numpy": "2"}}
    result = a_training(seconds=9.5, waiting=0.25, skipped=4, **figures)
    named = {"seconds": 9.5, "waiting_for_data": 0.25, "skipped_images": 4, "skipped_samples": 4}
    of_settings = {name: SETTINGS[name] for name in ("dataset", "task", "network", "loss", "sample_ratio")}
    expected = {**figures, **named, **of_settings}
    summary = result.summary()
    assert {name: summary[name] for name in expected} == expected
    measured = result._replace(sets={"val": a_set(points=POINTS)}).summary()["verification_details"]["val"]
    assert measured == {**POINTS[-1]._asdict(), "best": 0.8}


def test_next_commands(tmp_path, monkeypatch):
    """Each set's file occurs once, and trainings differ from this one."""
    sets = {"a": a_set(tmp_path), "a_ema": a_set(tmp_path)}
    settings = {**SETTINGS, "sample_ratio": 1, "trackers": ["jsonl", "tensorboard"], "resume": ""}
    result = a_training(folder="/runs/my run", settings=settings, sets=sets)
    cosface, sampled, verify, board = next_commands(result, "/program/run.sh")
    again = "NP=2 bash /program/run.sh --config '/runs/my run/settings.json' "
    assert cosface == f"{again}loss=cosface 'output=/runs/my run-loss=cosface'"
    assert sampled == f"{again}sample_ratio=0.1 'output=/runs/my run-sample_ratio=0.1'"
    installed, *_ = next_commands(result, "partial-fc")
    assert "partial-fc train --nproc 2 --config '/runs/my run/settings.json' loss=cosface" in installed
    assert verify.endswith(f"partial-fc verify '/runs/my run' {tmp_path}/set.bin")
    monkeypatch.setattr("sys.executable", "/python")  # of an environment that knows nothing of the clone
    monkeypatch.setenv("PATH", "")
    assert next_commands(result, "/program/run.sh")[2].startswith(f"PYTHONPATH={ROOT} /python -m partial_fc verify ")
    monkeypatch.undo()
    assert "tensorboard --logdir /runs  #" in board
    other = {**settings, "loss": "cosface", "sample_ratio": 0.1, "trackers": ["jsonl"]}
    arcface, _ = next_commands(result._replace(settings=other), "/program/run.sh")
    assert " loss=arcface " in arcface
    own, _ = next_commands(result._replace(settings={**other, "network": "mine:network"}), "/program/run.sh")
    assert " --trust-code loss=arcface " in own and "--trust-code" not in arcface
    heads = [Head("a", settings, own={"loss": "arcface"}), Head("b", settings, own={"margin": "mine:Margin"})]
    (sampled, _) = next_commands(result._replace(settings={**settings, "trackers": []}, heads=heads), "/program/run.sh")
    assert " --trust-code sample_ratio=0.1 " in sampled
    for resume, count in {"auto": 3, "/other/step-5": 1}.items():
        resumed = result._replace(settings={**settings, "resume": resume, "trackers": []})
        assert len(next_commands(resumed, "run.sh")) == count
    (card,) = next_commands(result._replace(settings={**other, "task": "words:Words"}), "")
    assert card.endswith("partial-fc report card '/runs/my run' --out '/runs/my run/card'")


def test_files(tmp_path):
    write_results(a_training(folder=str(tmp_path), sets={"val": a_set(tmp_path)}, missing=["/data/lfw.bin"]))
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 32000
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "lfw.bin" in (tmp_path / "report.html").read_text()


def test_a_report_that_fails_does_not_end_the_training(tmp_path, caplog):
    measured = a_set(tmp_path)
    (tmp_path / "set.bin").unlink()
    try_report(a_training(folder=str(tmp_path), sets={"val": measured}))
    (record,) = caplog.records
    assert record.message.startswith("the report of update 32000 was not written: ") and "set.bin" in record.message


def test_a_resumed_training_logs_changes(caplog):
    origin = {"setting lr": 0.1, "setting momentum": 0.9, "setting resume": "", "code": "abc"}
    manifest = Manifest(500, 7, 3, 2, [], {}, {}, [], origin)
    facts = {"setting lr": 0.2, "setting momentum": 0.9, "setting resume": "auto", "code": "abd", "new": 1}
    with caplog.at_level(logging.INFO):
        log_resume("models/run/checkpoints/step-0000000500", manifest, facts)
    assert [record.message.strip() for record in caplog.records] == [
        "resumes from update 500, saved by 2 ranks in models/run/checkpoints/step-0000000500",
        "setting lr was 0.1, now it is 0.2",
        "code was abc, now it is abd",
    ]


def test_points_of_a_version_that_did_not_count_the_far_are_kept():
    verification = CallBackVerification(SimpleNamespace(collectives=None), 8, {"set": PairVerification()}, 5)
    saved = verification.fields()["set"][:-2]
    values = list(point(10, 0.8))[:-2]
    verification.restore({"set": [values]}, {}, {"set": saved})
    assert verification.history["set"] == [point(10, 0.8)._replace(measured_far=None, tar_interpolated=None)]
    verification.restore({"set": [values[:-1]]}, {}, {"set": saved[:-1]})  # lacks a field that every point has
    assert len(verification.history["set"]) == 1
    verification.restore({"set": [values]}, {})  # from a version that did not save the fields
    assert verification.history["set"] == []


@pytest.mark.parametrize("num_update, has_threshold", [(5, False), (10, True), (0, False)])
def test_the_onnx_file_has_the_threshold_of_a_verification_at_the_same_update(num_update, has_threshold):
    origin = dict(
        network="r18", task="faces", dataset="demo", loss="arcface", num_classes=7, sample_ratio=0.5, rand_mirror=True
    )
    history = {"empty": [], "first": [point(5), point(10)], "second": [point(10)]} if num_update else {"a": [point(0)]}
    evaluations = {name: PairVerification() for name in history}
    verification = CallBackVerification(SimpleNamespace(collectives=None), 8, evaluations, 5)
    verification.history = history
    metadata = onnx_metadata({**origin, "lr": 0.1}, verification.metadata, num_update)
    threshold = {"verification_set": "first", "verification_threshold": "1.2"} if has_threshold else {}
    assert metadata == {
        **{name: str(value) for name, value in {**origin, "num_update": num_update}.items()},
        **threshold,
    }
