"""What a finished training writes and logs, from plain numbers."""

import json
import logging

import numpy as np

from partial_fc.checkpoint import Manifest
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic import encode_face
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.training.log_lines import log_resume, log_summary
from partial_fc.training.loss_point import LossPoint
from partial_fc.training.results import TrainingResult, summarize, try_report, write_report, write_results
from partial_fc.training.verification_history import PairFigures

POINTS = [VerificationPoint(n, a, 0.01, 1.2, 0.9, 1e-3, 20.0, 14.0, 0.95, 2.0) for n, a in ((10, 0.8), (20, 0.7))]
SETTINGS = dict(dataset="demo", network="small", loss="arcface", batch_size=8, sample_ratio=0.5)


def result(folder, **changes):
    """A training of 20 updates of 2 ranks with 8 images each."""
    fields = dict(
        folder=str(folder),
        settings=SETTINGS,
        ranks=2,
        updates=20,
        seconds=12.34567,
        training_seconds=4.0,
        losses=[LossPoint(10, 3.0, 80.0, 0.1), LossPoint(20, 2.5, 81.0, 0.2)],
        waiting=0.15,
        validation_sets={},
        history={"val": POINTS},
        figures={},
        problems={"val": []},
        suggestion="lower lr",
        baselines={"raw_pixels": 0.6, "untrained": 0.5},
        skipped=0,
        missing=["/data/lfw.bin"],
        versions={"numpy": "1"},
    )
    return TrainingResult(**{**fields, **changes})


def test_summary():
    summary = summarize(result("models/run"))
    assert (summary["ranks"], summary["updates"], summary["seconds"], summary["final_loss"]) == (2, 20, 12.346, 2.5)
    assert summary["samples_per_second"] == 80.0  # 20 updates of 16 images in 4 seconds
    assert summary["verification"] == {"val": 0.7} and summary["verification_details"]["val"]["best"] == 0.8
    assert summary["problems"] == {} and summary["suggestion"] is None
    summary = summarize(result("models/run", problems={"val": ["collapsed"]}, losses=[], training_seconds=0.0))
    assert summary["problems"] == {"val": ["collapsed"]} and summary["suggestion"] == "lower lr"
    assert summary["final_loss"] is summary["samples_per_second"] is None


def test_files(tmp_path):
    path = tmp_path / "val.bin"
    issame = np.arange(4) % 2 == 0
    write_pairs(path, [encode_face(0, person, 0) for person in range(8)], issame)
    figures = PairFigures(np.array([0.5, 3.0, 2.5, 1.0]), issame, 14.0, 0.95)
    write_results(result(tmp_path, validation_sets={"val": str(path)}, figures={"val": figures}))
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 20
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "lfw.bin" in (tmp_path / "report.html").read_text()


def test_a_report_that_fails_does_not_end_the_training(tmp_path, caplog):
    figures = PairFigures(np.array([0.5]), np.array([True]), 14.0, 0.95)
    try_report(result(tmp_path, validation_sets={"val": str(tmp_path / "val.bin")}, figures={"val": figures}))
    (record,) = caplog.records
    assert record.message.startswith("the report of update 20 was not written: ") and "val.bin" in record.message


def test_the_last_log_lines(caplog):
    with caplog.at_level(logging.INFO):
        log_summary(
            result("models/run", problems={"val": ["collapsed"]}, skipped=3), {"weights": "model.bin"}, "bash run.sh"
        )
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "bad images skipped on all ranks: 3",
        "[val] collapsed",
        "lower lr",
    ]
    assert "[val] final accuracy 0.70000, best 0.80000" in caplog.text
    assert "20 updates in 12.3 s, all written to models/run" in caplog.text


def test_a_resumed_training_logs_what_has_changed_but_how_it_was_started(caplog):
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


def test_a_report_of_an_unfinished_training_says_how_far_it_is(tmp_path):
    for updates, text in ((20, ", 20 of 50 updates so far,"), (50, ", 50 updates,")):
        settings = {**SETTINGS, "max_update": 50}
        write_report(result(tmp_path, settings=settings, updates=updates))
        assert text in (tmp_path / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.json", "report.html"]
