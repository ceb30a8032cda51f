"""Trainings on one set in every form, stopped in the middle and resumed: the same bytes."""

import subprocess
import sys

import pytest

from image_forms import FORMS, draw, write_records
from paths import ROOT

SETTINGS = (
    "num_classes=10 image_size=16 batch_size=8 max_update=6 network=mbf embedding_size=32 lr_steps=[5] trackers=jsonl "
    "verify_every=100 save_every=100 checkpoint_every=2 checkpoints_kept=5"
).split()
TRAINED = ("backbone.npz", "centers-00000.npy", "momentum-00000.npy")


def train(rec, output, environment, *more):
    command = [sys.executable, "train.py", *SETTINGS, f"rec={rec}", f"output={output}", *more]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(output / "checkpoints" / "step-0000000006" / name).read_bytes() for name in TRAINED]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trained_bytes_are_those_of_train_rec_also_resumed(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "dataset"))
    people = draw((8,) * 10)
    expected = train(write_records(tmp_path / "expected", people), tmp_path / "out", None)
    for form, write in FORMS.items():
        rec = write(tmp_path / form, people)
        assert train(rec, tmp_path / f"{form}-whole", None) == expected
        middle = tmp_path / f"{form}-whole" / "checkpoints" / "step-0000000002"
        assert train(rec, tmp_path / f"{form}-resumed", None, "--resume", middle) == expected
