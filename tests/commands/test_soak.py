"""A short benchmarks/soak.py: although ranks are killed at random, the training ends with the same bytes.

test_slurm.py and test_torch_training.py compare the bytes of PyTorch's trainings.
"""

import sys

import pytest
from conftest import CLASSES

from paths import ROOT

pytestmark = pytest.mark.slow


def test_a_training_whose_ranks_are_killed_ends_like_an_undisturbed_one(run, faces):
    data = ["dataset=demo", f"rec={faces}", f"num_classes={CLASSES}"]
    arguments = [*data, "batch_size=8", "max_update=60", "checkpoint_every=4"]
    soak = [sys.executable, ROOT / "benchmarks" / "soak.py", "--minutes", "0", "--longest", "3", "--kills", "2"]
    result = run(*soak, *arguments, timeout=170, NP="2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every byte the same" in result.stdout
    assert " with 0 kills" not in result.stdout
