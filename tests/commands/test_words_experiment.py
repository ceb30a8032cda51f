"""The experiment on the words, quick, with a run that it takes from its folder."""

import pytest
from conftest import TORCH, needs_torch


@pytest.mark.slow
@needs_torch
def test_the_experiment_trains_once(run, tmp_path):
    command = [TORCH / "python", "benchmarks/words.py", "--quick", "--ratios", "0.1"]
    command += ["--root", tmp_path / "words", "--folder", tmp_path / "models"]
    trained, taken = run(*command, timeout=300), run(*command, timeout=300)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "| 200 | 20 updates | 0 % | 0.1 | 1 |" in trained.stdout
    assert taken.stdout.splitlines()[-1] == trained.stdout.splitlines()[-1]  # also its seconds
