"""Trainings on one set in every form, killed and resumed in the middle: the same bytes."""

import subprocess
import sys

import pytest

from paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trained_bytes_are_those_of_train_rec_also_killed_and_resumed(tmp_path):
    pytest.importorskip("datasets")
    command = [sys.executable, "tests/every_form.py", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]
